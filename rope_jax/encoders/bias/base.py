"""What encoders that add to the attention logits have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal.arrays import difference, distance, leading, pairwise
from ..base import Encoder, Requirements, Tables
from ..positions.base import Positions

__all__ = ["Bias"]


@dataclass(frozen=True, kw_only=True)
class Bias(Encoder, ABC):
    """Base of encoders that add a function of positions to the logits. A subclass defines `bias`.

    Attributes:
      axis: which axis of the positions is read, where they have several; None where they have one.
    """

    axis: int | None = None

    def __post_init__(self) -> None:
        if self.axis is not None and self.axis < 0:
            raise ValueError(f"{type(self).__name__} axis must not be negative, got {self.axis}; axes are counted from 0")

    @property
    def requirements(self) -> Requirements:
        return Requirements(position_axes=None if self.axis is None else (self.axis + 1, None))

    @abstractmethod
    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        """What is added to the logits, as in `Encoder.bias`."""

    def positions_of(self, q: jax.Array, k: jax.Array, positions: Positions) -> Positions:
        """The positions on the axis that is read.

        Raises:
          ValueError: they are not the positions of q, [..., Tq, H, D], and k, [..., Tk, H, D], or have no such axis.
        """
        positions = positions.along(self.axis, type(self).__name__)
        positions.require_fit(q, k)
        return positions


def offsets(positions: Positions) -> jax.Array:
    """float32 [..., Tq, Tk]: key position minus query position; integers are subtracted without rounding."""
    query, key = pairwise(positions.query, positions.keys)
    return difference(key, query)


def distances(positions: Positions) -> jax.Array:
    """float32 [..., 1, Tq, Tk]: |q - k|, with an axis for heads."""
    query, key = pairwise(positions.query, positions.keys)
    return jnp.expand_dims(distance(query, key).astype(jnp.float32), -3)


def per_head(x: jax.Array, distance: jax.Array) -> jax.Array:
    """x, [H], reshaped to the rank of distance, [..., 1, Tq, Tk]."""
    return leading(x[:, None, None], distance.ndim)
