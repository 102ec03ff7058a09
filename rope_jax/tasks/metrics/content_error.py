"""Content errors: a wrong symbol."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.batch import Batch
from rope_jax.tasks.formats import EOS
from rope_jax.tasks.metrics.base import Metric, examples_where, is_wrong, predicted

__all__ = ["ContentError"]


@dataclass(frozen=True, kw_only=True)
class ContentError(Metric):
    """The fraction of examples with a wrong symbol in the answer: neither the target nor the prediction there is EOS.

    An example can have a content error and an end error. An example with neither is an exact match.
    """

    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        about_end = (predicted(logits) == EOS) | (batch.targets == EOS)
        return examples_where(jnp.any(is_wrong(logits, batch) & ~about_end, axis=-1), batch)
