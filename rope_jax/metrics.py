"""What evaluation counts: sums, merged by addition and divided once at the end."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rope_jax.tasks.base import Batch


class Counts(NamedTuple):
    """Sums over examples, int32 [].

    Attributes:
      examples: how many there were.
      exact: those whose y and EOS are all right.
      tokens: how many targets there were in y and EOS.
      right: those predicted.
    """

    examples: jax.Array
    exact: jax.Array
    tokens: jax.Array
    right: jax.Array


def count(logits: jax.Array, batch: Batch) -> Counts:
    """Counts one batch; an example without targets (filling) counts for nothing.

    Args:
      logits: [B, T, V].
      batch: of the same B and T.
    """
    right = (jnp.argmax(logits, axis=-1) == batch.targets) & batch.loss_mask
    real = jnp.any(batch.loss_mask, axis=-1)
    exact = real & jnp.all(right | ~batch.loss_mask, axis=-1)
    return Counts(*(jnp.sum(x, dtype=jnp.int32) for x in (real, exact, batch.loss_mask, right)))
