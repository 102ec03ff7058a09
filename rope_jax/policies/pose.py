"""Chunks with random skips between them (Zhu et al. 2024, arXiv:2309.10400)."""

from dataclasses import dataclass

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import DrawnPolicy, positions_by_example
from rope_jax.tasks.batch import Batch

__all__ = ["PoSE"]


@dataclass(frozen=True, kw_only=True)
class PoSE(DrawnPolicy):
    """Chunks with random skips between them, as `positions.pose` (Zhu et al. 2024, arXiv:2309.10400).

    The paper trains with these positions and tests with contiguous ones. The latter is a variant:
    `Variant(policy=Contiguous(), ...)`.

    Attributes:
      max_position: positions are from 0 to max_position - 1.
      chunks: the number of chunks.
    """

    chunks: int = 2

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise ValueError(f"PoSE chunks must be at least 1, got {self.chunks}; the paper has 2")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]

        def draw(key: jax.Array, length: jax.Array) -> jax.Array:
            return positions.pose(key, length, size, max_position=self.max_position, chunks=self.chunks)

        return positions_by_example(draw, keys, batch)
