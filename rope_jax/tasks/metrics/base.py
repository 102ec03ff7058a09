"""A metric is a sum and a count: both are added up over micro-batches, and divided once at the end."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.names import snake_case

__all__ = ["Metric", "examples_where", "is_wrong", "predicted"]


@dataclass(frozen=True, kw_only=True)
class Metric(TypedDataclass, ABC):
    """Base of the metrics. A subclass defines `measure`."""

    @property
    def name(self) -> str:
        """The metric's column in rows and tables."""
        return snake_case(type(self).__name__)

    @abstractmethod
    def measure(self, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Measures one micro-batch.

        Args:
          logits: float32 [B, T, V], what the model predicts at each position.
          batch: the B examples. An example without any answer token only fills up the micro-batch; it must count for nothing.

        Returns:
          A sum and a count, both int32 or float32 []. The metric's value is the sum of all sums over the sum of all counts.
        """


def predicted(logits: jax.Array) -> jax.Array:
    """int32 [B, T]: the most probable token at each position."""
    return jax.lax.argmax(logits, logits.ndim - 1, jnp.int32)


def is_wrong(logits: jax.Array, batch: Batch) -> jax.Array:
    """bool [B, T]: the answer tokens that the most probable prediction misses."""
    return batch.answer_mask & (predicted(logits) != batch.targets)


def examples_where(holds: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The sum and the count of a metric that is a fraction of examples; examples without any answer token count for nothing.

    Args:
      holds: bool [B], for each example whether it belongs to the fraction.
      batch: of the same B examples.

    Returns:
      How many examples hold, and how many there are, both int32 [].
    """
    counted = jnp.any(batch.answer_mask, axis=-1)
    return jnp.sum(counted & holds, dtype=jnp.int32), jnp.sum(counted, dtype=jnp.int32)
