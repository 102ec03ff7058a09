"""Exact match: whole answers."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics.base import Metric, is_filling, is_wrong

__all__ = ["ExactMatch"]


@dataclass(frozen=True, kw_only=True)
class ExactMatch(Metric):
    """The fraction of examples whose answer tokens are all predicted right."""

    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        counted = ~is_filling(batch)
        exact = counted & ~jnp.any(is_wrong(logits, batch), axis=-1)
        return jnp.sum(exact, dtype=jnp.int32), jnp.sum(counted, dtype=jnp.int32)
