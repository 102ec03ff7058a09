"""What the third door's encodings have in common: a number for every head, query and key, added to the logits."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal.arrays import leading, pairwise, wide
from ..base import Encoder, Tables
from ..positions import Positions, require_axis

__all__ = ["Bias"]


@dataclass(frozen=True, kw_only=True)
class Bias(Encoder):
    """Base of the encodings that act on the logits.

    Attributes:
      axis: which axis of the positions is read, if they have several; None if they have one.
    """

    axis: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis is not None and self.axis < 0:
            raise ValueError(f"{type(self).__name__} axis must not be negative, got {self.axis}; axes count from 0")

    def check_positions(self, axes: int | None, real: bool) -> None:
        require_axis(axes, self.axis, type(self).__name__)

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = positions.along(self.axis, type(self).__name__)
        positions.require_fit(q, k)
        return self.added(tables, q, k, positions)

    def added(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        """What is added to the logits, float32 [..., H, Tq, Tk]; `positions` have one axis."""
        raise TypeError(f"{type(self).__name__} defines no added(tables, q, k, positions)")


def offsets(positions: Positions) -> jax.Array:
    """int32 or float32 [..., Tq, Tk]: key position minus query position; integers are subtracted as such, so none is rounded."""
    query, key = pairwise(wide(positions.query), wide(positions.keys))
    return key - query


def distances(positions: Positions) -> jax.Array:
    """float32 [..., 1, Tq, Tk]: |q - k|, with an axis for the heads."""
    return jnp.expand_dims(jnp.abs(offsets(positions)).astype(jnp.float32), -3)


def per_head(x: jax.Array, beside: jax.Array) -> jax.Array:
    """x, [H], with the rank of a bias [..., H, Tq, Tk]."""
    return leading(x[:, None, None], beside.ndim)
