"""A sorted random subset of the positions (Ruoss et al. 2023, arXiv:2305.16843)."""

from dataclasses import dataclass

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import DrawnPolicy, positions_by_example
from rope_jax.tasks.batch import Batch

__all__ = ["Randomized"]


@dataclass(frozen=True, kw_only=True)
class Randomized(DrawnPolicy):
    """A sorted random subset of positions for each example, as `positions.randomized` (Ruoss et al. 2023, arXiv:2305.16843).

    Attributes:
      max_position: the subset is drawn from 0 .. max_position - 1.
    """

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]

        def draw(key: jax.Array, length: jax.Array) -> jax.Array:
            return positions.randomized(key, length, size, max_position=self.max_position)

        return positions_by_example(draw, keys, batch)
