"""How scores become outputs: softmax(q k^T / sqrt(D) + bias) v, in blocks over the queries (Vaswani et al. 2017, eq. 1).

A block's scores are [H, block, Tk], never [H, T, T], and the backward pass recomputes them, so memory grows with the length and
not with its square. `attend` and `attend_reference` are the same function; the second takes all queries at once.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from rope_jax.encoders.base import Positions

BiasDoor = Callable[[jax.Array, jax.Array, Positions], jax.Array | None]

BLOCK_SIZE = 128  # queries a block


def attend_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Positions,
    *,
    bias: BiasDoor,
    query_index: jax.Array,
    key_index: jax.Array,
) -> jax.Array:
    """Attention of all queries at once; arguments and result as in `attend`, indices given."""
    scores = jnp.einsum("...thd,...shd->...hts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    added = bias(q, k, positions)
    if added is not None:
        scores = scores + jnp.broadcast_to(added, scores.shape)
    visible = jnp.expand_dims(key_index, -2) <= jnp.expand_dims(query_index, -1)
    visible = jnp.expand_dims(visible, -3)
    visible = jnp.broadcast_to(jnp.reshape(visible, (1,) * (scores.ndim - visible.ndim) + visible.shape), scores.shape)
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
    query_index: jax.Array | None = None,
    key_index: jax.Array | None = None,
    block_size: int = BLOCK_SIZE,
) -> jax.Array:
    """Causal attention in blocks over the queries.

    Args:
      q: [..., Tq, H, D], already rotated.
      k, v: [..., Tk, H, D].
      positions: handed to `bias`, with its query part cut to the block.
      bias: an encoder's third door: (q, k, positions) -> float32 [..., H, Tq, Tk], or None for nothing.
      query_index, key_index: int [..., Tq] and [..., Tk], order in the sequence, 0 .. T - 1 by default: a query sees the keys
        whose index is not above its own. Order is apart from position, which an encoder may draw at random.
      block_size: queries a block.

    Returns:
      [..., Tq, H, D] in q's dtype; scores, bias and softmax are float32.
    """
    length = q.shape[-3]
    query_index = jnp.arange(length) if query_index is None else query_index
    key_index = jnp.arange(k.shape[-3]) if key_index is None else key_index
    if length <= block_size:
        return attend_reference(q, k, v, positions, bias=bias, query_index=query_index, key_index=key_index)

    @jax.checkpoint
    def block(args: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        q, query_index, query_positions = args
        here = replace(positions, query=query_positions, key=positions.keys)
        return attend_reference(q, k, v, here, bias=bias, query_index=query_index, key_index=key_index)

    cut = (_cut(q, -3, block_size), _cut(query_index, -1, block_size), _cut(positions.query, -1, block_size))
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
