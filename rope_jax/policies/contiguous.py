"""Positions that count tokens."""

from dataclasses import dataclass

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import Policy
from rope_jax.tasks.batch import Batch

__all__ = ["Contiguous"]


@dataclass(frozen=True, kw_only=True)
class Contiguous(Policy):
    """The usual positions: offset, offset + 1, ...

    Attributes:
      offset: the position of the first token.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise ValueError(f"Contiguous offset must not be negative, got {self.offset}; the usual value is 0")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        return Positions(query=positions.contiguous(batch.tokens.shape[-1], offset=self.offset), length=batch.lengths)

    def reach(self, length: int) -> int:
        return self.offset + length
