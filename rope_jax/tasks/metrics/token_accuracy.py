"""Token accuracy: answers token by token."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics.base import Metric, is_wrong

__all__ = ["TokenAccuracy"]


@dataclass(frozen=True, kw_only=True)
class TokenAccuracy(Metric):
    """The fraction of all answer tokens that are predicted right."""

    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        right = batch.answer_mask & ~is_wrong(logits, batch)
        return jnp.sum(right, dtype=jnp.int32), jnp.sum(batch.answer_mask, dtype=jnp.int32)
