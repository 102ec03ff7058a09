"""End errors: an answer that ends too early or too late."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.batch import Batch
from rope_jax.tasks.formats import EOS
from rope_jax.tasks.metrics.base import Metric, examples_where, is_wrong, predicted

__all__ = ["EndError"]


@dataclass(frozen=True, kw_only=True)
class EndError(Metric):
    """The fraction of examples with a wrong end of the answer: EOS is missed, or predicted where a symbol is due.

    An example can have an end error and a content error. An example with neither is an exact match.
    """

    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        about_end = (predicted(logits) == EOS) | (batch.targets == EOS)
        return examples_where(jnp.any(is_wrong(logits, batch) & about_end, axis=-1), batch)
