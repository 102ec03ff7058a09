"""What evaluation counts: sums, merged by addition and divided once at the end."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rope_jax.tasks.base import EOS, Batch


class Counts(NamedTuple):
    """Sums over examples, int32 [].

    Attributes:
      examples: how many there were.
      exact: those whose y and EOS are all right.
      tokens: how many targets there were in y and EOS.
      right: those predicted.
      content_wrong: examples with a wrong symbol: neither the target there nor the prediction is EOS.
      end_wrong: examples with a wrong end: EOS missed, or predicted where a symbol is due. An example can be wrong in both ways;
        what is wrong in neither is exact.
    """

    examples: jax.Array
    exact: jax.Array
    tokens: jax.Array
    right: jax.Array
    content_wrong: jax.Array
    end_wrong: jax.Array


def count(logits: jax.Array, batch: Batch) -> Counts:
    """Counts one batch; an example without targets (filling) counts for nothing.

    Args:
      logits: [B, T, V].
      batch: of the same B and T.
    """
    predicted = jnp.argmax(logits, axis=-1)
    right = (predicted == batch.targets) & batch.loss_mask
    wrong = ~right & batch.loss_mask
    of_end = (predicted == EOS) | (batch.targets == EOS)
    real = jnp.any(batch.loss_mask, axis=-1)
    exact = real & ~jnp.any(wrong, axis=-1)
    content_wrong, end_wrong = jnp.any(wrong & ~of_end, axis=-1), jnp.any(wrong & of_end, axis=-1)
    found = (real, exact, batch.loss_mask, right, content_wrong, end_wrong)
    return Counts(*(jnp.sum(x, dtype=jnp.int32) for x in found))
