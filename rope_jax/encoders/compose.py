"""Several encodings as one, each through its own doors."""

from dataclasses import dataclass
from typing import Any

import jax

from rope_jax.encoders.base import Positions, leading
from rope_jax.encoders.parts import Parts

__all__ = ["Compose"]


@dataclass(frozen=True, init=False)
class Compose(Parts):
    """Opens every part's doors: what is added adds up, rotations follow one another in the order of the parts.

    A bias that reads q and k (TransformerXL, CoPE) reads them as attention does, already turned.

    Formula: the parts'
    Extrapolates: as its parts do
    Knows: what its parts know

    Example:
      >>> encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
      >>> encoder.bias(encoder.prepare({}, None, dims), q, k, positions).shape  # ALiBi's
      (2, 3, 3)
    """

    def embed(self, tables: tuple[Any, ...], x: jax.Array, positions: Positions) -> jax.Array:
        for part, own in zip(self.parts, tables, strict=True):
            x = part.embed(own, x, positions)
        return x

    def rotate(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        for part, own in zip(self.parts, tables, strict=True):
            q, k = part.rotate(own, q, k)
        return q, k

    def bias(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        total = None
        for part, own in zip(self.parts, tables, strict=True):
            added = part.bias(own, q, k, positions)
            total = added if total is None else total if added is None else _sum(total, added)
        return total


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return leading(a, rank) + leading(b, rank)
