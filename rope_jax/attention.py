"""How scores become outputs: softmax(q k^T / sqrt(D) + bias) v, in blocks over the queries (Vaswani et al. 2017, eq. 1).

A block's scores are [H, block, Tk], never [H, T, T], and the backward pass recomputes them, so memory grows with the length and
not with its square. `attend` and `attend_reference` are the same function; the second takes all queries at once.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rope_jax.encoders.base import Positions, leading

BiasDoor = Callable[[jax.Array, jax.Array, Positions], jax.Array | None]

BLOCK_SIZE = 128  # queries a block


def attend_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Positions,
    *,
    bias: BiasDoor = lambda q, k, positions: None,
) -> jax.Array:
    """Attention of all queries at once; arguments and result as in `attend`."""
    scores = jnp.einsum("...thd,...shd->...hts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    added = bias(q, k, positions)
    if added is not None:
        scores = scores + jnp.broadcast_to(added, scores.shape)
    visible = jnp.broadcast_to(leading(jnp.expand_dims(positions.visible(), -3), scores.ndim), scores.shape)
    # the least float, not -inf: a query that sees nothing (padding) then has an average, and finite gradients
    weights = jax.nn.softmax(jnp.where(visible, scores, jnp.finfo(jnp.float32).min), axis=-1)
    out = jnp.einsum("...hts,...shd->...thd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out.astype(q.dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Positions,
    *,
    bias: BiasDoor = lambda q, k, positions: None,
    block_size: int = BLOCK_SIZE,
) -> jax.Array:
    """Causal attention in blocks over the queries.

    Args:
      q: [..., Tq, H, D], already rotated.
      k, v: [..., Tk, H, D].
      positions: where queries and keys stand, and by their order which keys a query sees; handed to `bias` with what it says of
        the queries cut to the block.
      bias: an encoder's third door: (q, k, positions) -> float32 [..., H, Tq, Tk], or None for nothing.
      block_size: queries a block.

    Returns:
      [..., Tq, H, D] in q's dtype; scores, bias and softmax are float32.
    """
    positions.require_fit(q, k)
    length = q.shape[-3]
    if length <= block_size:
        return attend_reference(q, k, v, positions, bias=bias)
    query_order, key_order = positions.orders
    query_segment, key_segment = positions.segments or (None, None)
    keys = replace(positions, key=positions.keys, key_order=key_order, key_segment=key_segment)
    of_queries = {"query": positions.query, "query_order": query_order, "query_segment": query_segment}

    @jax.checkpoint
    def block(args: tuple[jax.Array, dict[str, Any]]) -> jax.Array:
        q, own = args
        return attend_reference(q, k, v, replace(keys, **own), bias=bias)

    cut = (_cut(q, -3, block_size), {name: _cut(x, -1, block_size) for name, x in of_queries.items() if x is not None})
    return _join(lax.map(block, cut), -3, length)


def _cut(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    """x with one axis cut into blocks, which come first; the last block is filled up with the last entry."""
    axis = axis % x.ndim
    missing = -x.shape[axis] % block_size
    x = jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)], mode="edge")
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, block_size, *x.shape[axis + 1 :]), axis, 0)


def _join(blocks: jax.Array, axis: int, length: int) -> jax.Array:
    """Undoes `_cut`."""
    axis = axis % (blocks.ndim - 1)
    x = jnp.moveaxis(blocks, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=axis)
