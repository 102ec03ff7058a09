"""One random offset for each example."""

from dataclasses import dataclass

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import DrawnPolicy, positions_by_example
from rope_jax.tasks.batch import Batch

__all__ = ["RandomOffset"]


@dataclass(frozen=True, kw_only=True)
class RandomOffset(DrawnPolicy):
    """One uniform offset for each example, so that all rows of a table are trained, as `positions.random_offset`.

    Attributes:
      max_position: positions are from 0 to max_position - 1.
    """

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]

        def draw(key: jax.Array, length: jax.Array) -> jax.Array:
            return positions.random_offset(key, length, size, max_position=self.max_position)

        return positions_by_example(draw, keys, batch)
