"""Sliding windows: attention to the last few tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal.arrays import pairwise
from ..base import Encoder, Tables
from ..positions import Positions

__all__ = ["SlidingWindow"]


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Encoder):
    """Lets a query see the last `size` tokens, its own included (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    It counts tokens by their order; with a cache of keys whose positions are not consecutive, `Positions` needs query_order and
    key_order. Hugging Face's `sliding_window` is `size`.

    Formula: bias[q, k] = 0 if fewer than `size` tokens lie from k to before q, else -8e37 (no weight)
    Extrapolates: yes, a window is as wide at every length; what is further back than layers x (size - 1) is out of reach
    Knows: nothing

    Example:
      >>> (rj.SlidingWindow(size=2).bias({}, q, k, positions)[0] == 0).tolist()
      [[True, True, True], [True, True, True], [False, True, True]]

    Attributes:
      size: tokens seen.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"SlidingWindow size must be at least 1, got {self.size}; 1 is a token that sees itself alone")

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions.require_fit(q, k)
        query, key = pairwise(*positions.orders)
        if not jnp.issubdtype(jnp.result_type(query, key), jnp.integer):
            raise ValueError(
                "SlidingWindow counts tokens, and real positions of keys given apart do not say how many lie between; give "
                "query_order and key_order"
            )
        # far below every logit and finite, so that a sum of two such is finite too
        return jnp.expand_dims(jnp.where(query - key < self.size, 0.0, jnp.finfo(jnp.float32).min / 4), -3)
