"""Contextual position encoding: learned gates decide which tokens a position counts (Golovneva et al. 2024)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from .._internal import random
from .._internal.arrays import leading, with_query_heads
from .._internal.inputs import require_not_negative
from ..base import Dims, Encoder, Params, Requirements, Tables
from ..positions.base import Positions

__all__ = ["CoPE"]


@dataclass(frozen=True, kw_only=True)
class CoPE(Encoder):
    """Adds q . e(p), where p is a sum of gates over the tokens from the key to the query (arXiv:2405.18719, eq. 3 to 6).

    It does not read positions. It reads the order of tokens, which decides the keys that a query sees. Another method with the
    name CoPE clips the slow pairs of RoPE.

    Formula: bias[h, q, k] = q . e(p), p = min(sum of sigmoid(q . k' / sqrt(D)) over k' from k to q, max_count - 1); e learned,
      interpolated between whole counts
    Extrapolates: yes, counts from max_count - 1 on share one row
    Knows: nothing

    Example:
      >>> params = rj.CoPE(max_count=8).init(jax.random.key(0), dims)
      >>> rj.CoPE(max_count=8).bias(params, q, k, positions).shape  # heads, queries, keys
      (2, 3, 3)

    Attributes:
      max_count: rows of e, for counts 0 .. max_count - 1.
      init_scale: standard deviation of the initial rows; the paper has 0.
    """

    max_count: int = 64
    init_scale: float = 0.0

    def __post_init__(self) -> None:
        if self.max_count < 1:
            raise ValueError(f"CoPE max_count must be at least 1, got {self.max_count}; it is one more than the largest count")
        require_not_negative("CoPE init_scale", self.init_scale)

    def init(self, key: jax.Array, dims: Dims) -> Params:
        return {"rows": self.init_scale * random.normal(key, (self.max_count, dims.head_dim))}

    @property
    def requirements(self) -> Requirements:
        return Requirements(causal=True)

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions.require_fit(q, k)
        positions.require_causal("CoPE")
        positions.require_counted("CoPE")
        q, k = q.astype(jnp.float32), with_query_heads(q, k).astype(jnp.float32)
        scores = jnp.einsum("...thd,...shd->...hts", q, k, precision=lax.Precision.HIGHEST) / math.sqrt(q.shape[-1])
        seen = jnp.broadcast_to(leading(jnp.expand_dims(positions.visible(), -3), scores.ndim), scores.shape)
        # a cache may hold keys in any order
        by_order = leading(jnp.argsort(positions.orders[1], axis=-1)[..., None, None, :], scores.ndim)
        gates = jnp.take_along_axis(jnp.where(seen, jax.nn.sigmoid(scores), 0.0), by_order, axis=-1)
        count = lax.cumsum(gates, axis=scores.ndim - 1, reverse=True)
        count = jnp.take_along_axis(count, jnp.argsort(by_order, axis=-1), axis=-1)
        count = jnp.minimum(count, self.max_count - 1.0)
        products = jnp.einsum("...thd,pd->...htp", q, tables["rows"], precision=lax.Precision.HIGHEST)
        below = jnp.floor(count)
        above, fraction = jnp.minimum(below + 1, self.max_count - 1.0), count - below

        def product(row: jax.Array) -> jax.Array:
            return jnp.take_along_axis(products, row.astype(jnp.int32), axis=-1)

        return product(below) * (1 - fraction) + product(above) * fraction
