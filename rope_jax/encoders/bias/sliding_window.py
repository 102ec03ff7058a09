"""Sliding windows: attention to the last few tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal.arrays import distance, pairwise
from ..base import Encoder, Tables
from ..positions.base import Positions

__all__ = ["SlidingWindow"]


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Encoder):
    """Lets a query see the last `size` tokens, including itself (Beltagy et al. 2020, arXiv:2004.05150, section 3.1).

    In two-sided attention (`Positions(causal=False)`) it sees as many tokens after it as before it. Tokens are counted by their
    order. With a cache of keys whose positions are not consecutive, `Positions` needs query_order and
    key_order. Hugging Face's `sliding_window` is `size`.

    Formula: bias[q, k] = 0 if order(q) - order(k) < size, else -8e37 (no weight); |order(q) - order(k)| in two-sided attention
    Extrapolates: yes, the window has the same width at every length; tokens more than layers x (size - 1) back have no effect
    Knows: nothing

    Example:
      >>> (rj.SlidingWindow(size=2).bias({}, q, k, positions)[0] == 0).tolist()
      [[True, True, True], [True, True, True], [False, True, True]]

    Attributes:
      size: the number of tokens that a query sees; in two-sided attention, on each side, and both sides include itself.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"SlidingWindow size must be at least 1, got {self.size}; with 1, a token sees only itself")

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions.require_fit(q, k)
        positions.require_counted("SlidingWindow")
        query, key = pairwise(*positions.orders)
        if not jnp.issubdtype(jnp.result_type(query, key), jnp.integer):
            raise ValueError(
                "SlidingWindow counts tokens by their order, and with key= the order is by default the positions, which are real "
                "numbers here; give query_order and key_order"
            )
        # far below every logit, and finite, so that the sum of two such biases is finite too
        inside = distance(query, key) < self.size
        inside = inside | (key > query) if positions.causal else inside
        return jnp.expand_dims(jnp.where(inside, 0.0, jnp.finfo(jnp.float32).min / 4), -3)
