"""Sorted uniform real positions (arXiv:2602.14050)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import Policy, positions_by_example
from rope_jax.tasks.batch import Batch

__all__ = ["RandomFloat"]


@dataclass(frozen=True, kw_only=True)
class RandomFloat(Policy):
    """Sorted uniform reals, drawn for each example, as `positions.random_float` (arXiv:2602.14050).

    Attributes:
      max_position: positions are in [0, max_position), for examples of any length.
    """

    real: ClassVar[bool] = True
    max_position: float

    def __post_init__(self) -> None:
        if self.max_position <= 0:
            raise ValueError(f"RandomFloat max_position must be positive, got {self.max_position}")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]

        def draw(key: jax.Array, length: jax.Array) -> jax.Array:
            return positions.random_float(key, length, size, max_position=self.max_position)

        return positions_by_example(draw, keys, batch)

    def reach(self, length: int) -> int:
        return math.ceil(self.max_position)

    @property
    def privileged(self) -> tuple[str, ...]:
        return ("length",)
