"""Exact match: whole answers."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics.base import Metric, examples_where, is_wrong

__all__ = ["ExactMatch"]


@dataclass(frozen=True, kw_only=True)
class ExactMatch(Metric):
    """The fraction of examples whose answer tokens are all predicted right."""

    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return examples_where(~jnp.any(is_wrong(logits, batch), axis=-1), batch)
