"""Attention: softmax(q k^T / sqrt(D) + bias) v under the mask of `Positions.visible` (Vaswani et al. 2017, eq. 1).

`attend` and `attend_reference` compute the same function. `attend_reference` is the formula, all queries at once. `attend` works
in blocks of queries. A block's scores are [H, block, Tk], and the backward pass computes them again if there are several blocks.
So memory grows with the length and not with its square. A short text is one block (`block_sizes.query_block_size`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import lax

from rope_jax.encoders._internal.arrays import leading, with_query_heads
from rope_jax.encoders._internal.inputs import numbers, shown, whole
from rope_jax.encoders.positions import Positions
from rope_jax.model import block_sizes

BiasFunction = Callable[[jax.Array, jax.Array, Positions], jax.Array | None]
"""An encoder's hook `bias`: (q, k, positions) -> float32 [..., H, Tq, Tk] to add to the scores, or None for nothing."""


def attend_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Positions,
    *,
    bias: BiasFunction = lambda q, k, positions: None,
) -> jax.Array:
    """Attention of all queries at once.

    Args:
      q, k, v, positions, bias: as in `attend`.

    Returns:
      As `attend`.

    Raises:
      ValueError: as `attend`.
    """
    _require_shapes(q, k, v, positions)
    k, v = with_query_heads(q, k), with_query_heads(q, v)
    scores = jnp.einsum("...thd,...shd->...hts", q, k, preferred_element_type=jnp.float32) / math.sqrt(q.shape[-1])
    score_bias = bias(q, k, positions)
    if score_bias is not None:
        scores = scores + jnp.broadcast_to(score_bias, scores.shape)
    visible = jnp.broadcast_to(leading(jnp.expand_dims(positions.visible(), -3), scores.ndim), scores.shape)
    # the least float, not -inf, so that a query that sees no key (padding) gets an average and finite gradients
    weights = jax.nn.softmax(jnp.where(visible, scores, jnp.finfo(jnp.float32).min), axis=-1)
    out = jnp.einsum("...hts,...shd->...thd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out.astype(q.dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: Positions,
    *,
    bias: BiasFunction = lambda q, k, positions: None,
    block_size: int | None = None,
    budget: int | None = None,
    fused: bool = True,
) -> jax.Array:
    """Attention in blocks of queries.

    Args:
      q: [..., Tq, H, D], already rotated.
      k, v: [..., Tk, Hk, D]; Hk divides H, and each key head serves H / Hk consecutive query heads (grouped-query attention).
      positions: the positions of queries and keys, and their order, which decides which keys a query sees (all, where they say
        causal=False). `bias` gets the positions of the block's queries and of their keys.
      bias: an encoder's hook `bias`: (q, k, positions) -> float32 [..., H, Tq, Tk], or None for nothing.
      block_size: queries per block, at least 1; None chooses by device and shape (`block_sizes.query_block_size`). Under
        `jax.export`, a symbolic number of queries or keys is one block: cutting it into blocks needs a known number.
      budget: bytes of a block of scores, where the block size is chosen on an accelerator (`block_sizes.activation_bytes`).
      fused: use cuDNN's fused kernel where it computes the same function: on a GPU that has it, in half precision, for
        self-attention in the usual order without a bias or documents, with D a multiple of 8 up to 128.

    Returns:
      [..., Tq, H, D] in q's dtype; scores, bias and softmax are float32.

    Raises:
      ValueError: q, k, v and the positions do not fit each other, the heads of k do not divide those of q, or block_size is
        below 1.
    """
    _require_shapes(q, k, v, positions)
    if q.shape[-3] == 0 or k.shape[-3] == 0:  # no query, or nothing to attend to
        return jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    length = q.shape[-3]
    block_size = _block_size(q, k, budget) if block_size is None else whole("block_size", block_size, lowest=1)
    usual = positions.causal and positions.key is None and positions.query_order is None and positions.key_order is None
    if fused and usual and _fused_computes(q, k, v, positions, bias):
        flat = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
        return jax.nn.dot_product_attention(*flat, is_causal=True, implementation="cudnn").reshape(q.shape)
    if any(map(jax.export.is_symbolic_dim, (length, k.shape[-3]))) or length <= block_size:
        return _attend(q, k, v, positions, bias)
    filled = _filled_in(positions)
    if not usual:
        return _in_blocks(q, k, v, filled, bias, block_size)
    # in the usual order no query sees a later key: each section of queries needs the keys up to its end alone
    outs = []
    for begin, end in pairwise([0, *block_sizes.section_ends(length, block_size)]):
        section = _narrowed(_narrowed(filled, _QUERY_FIELDS, begin, end), _KEY_FIELDS, 0, end)
        outs.append(_in_blocks(q[..., begin:end, :, :], k[..., :end, :, :], v[..., :end, :, :], section, bias, block_size))
    return jnp.concatenate(outs, axis=-3)


def _require_shapes(q: jax.Array, k: jax.Array, v: jax.Array, positions: Positions) -> None:
    """Raises ValueError unless q, k, v and the positions fit each other."""
    if not isinstance(positions, Positions):
        raise ValueError(f"positions must be Positions, such as Positions(query=...), got {shown(positions)}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3 or not jnp.issubdtype(x.dtype, jnp.floating) or 0 in x.shape[-2:]:
            raise ValueError(f"{name} must be floats with the axes [..., T, H, D], got {x.dtype} {x.shape}; reshape or cast it")
    if q.shape[-1] != k.shape[-1] or k.shape[-3:-1] != v.shape[-3:-1]:
        raise ValueError(
            f"k must have the head dim of q, and v the tokens and heads of k, got q {q.shape}, k {k.shape} and v {v.shape}"
        )
    positions.require_fit(q, k)


def _block_size(q: jax.Array, k: jax.Array, budget: int | None) -> int:
    """How many queries are one block by default."""
    sizes = (q.shape[-3], k.shape[-3], math.prod(q.shape[:-3]) * q.shape[-2])
    # a symbolic batch counts as one example
    known = (1 if jax.export.is_symbolic_dim(size) else size for size in sizes)
    return block_sizes.query_block_size(*known, budget=budget)


def has_fused_kernel() -> bool:
    """Whether the devices are GPUs for which cuDNN has fused attention: Ampere and later."""
    device = jax.devices()[0]
    major, _, _ = str(getattr(device, "compute_capability", "")).partition(".")  # such as "9.0"; AMD's are names
    return device.platform == "gpu" and major.isdigit() and int(major) >= 8


def _fused_computes(q: jax.Array, k: jax.Array, v: jax.Array, positions: Positions, bias: BiasFunction) -> bool:
    """Whether cuDNN's kernel is there and computes the same function of these arrays."""
    return (
        has_fused_kernel()
        and q.dtype in (jnp.bfloat16, jnp.float16)
        and q.shape == k.shape == v.shape
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and positions.segments is None
        and jax.eval_shape(lambda q, k: bias(q, k, positions), q, k) is None
    )


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, positions: Positions, bias: BiasFunction) -> jax.Array:
    """As `attend_reference`, with heads before time, as both products need them, and the division by the sum last."""
    lead = jnp.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    score_bias = bias(q, k, positions)
    k, v = with_query_heads(q, k), with_query_heads(q, v)
    batch = tuple(range(len(lead) + 1))

    def heads_first(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(jnp.broadcast_to(x, (*lead, *x.shape[-3:])), -2, -3)

    def dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
        contracted = ((len(lead) + 2,), (len(lead) + axis,))
        return lax.dot_general(a, b, (contracted, (batch, batch)), preferred_element_type=jnp.float32)

    scores = dot(heads_first(q), heads_first(k), 2) / math.sqrt(q.shape[-1])
    if score_bias is not None:
        scores = scores + leading(score_bias, scores.ndim)
    # the least float, not -inf, so that a query that sees no key (padding) gets an average and finite gradients
    visible = leading(jnp.expand_dims(positions.visible(), -3), scores.ndim)
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    out = dot(weights.astype(v.dtype), heads_first(v), 1) / jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.swapaxes(out, -2, -3).astype(q.dtype)


def _in_blocks(q: jax.Array, k: jax.Array, v: jax.Array, positions: Positions, bias: BiasFunction, block_size: int) -> jax.Array:
    """`_attend`, one block of queries after the other; the backward pass computes each block again."""

    @jax.checkpoint
    def block(args: tuple[jax.Array, dict[str, Any]]) -> jax.Array:
        q, query_fields = args
        return _attend(q, k, v, replace(positions, **query_fields), bias)

    query_fields = {name: getattr(positions, name) for name in _QUERY_FIELDS}
    cut = (_cut(q, -3, block_size), {name: _cut(x, -1, block_size) for name, x in query_fields.items() if x is not None})
    return _join(lax.map(block, cut), -3, q.shape[-3])


_QUERY_FIELDS = ("query", "query_order", "query_segment")
_KEY_FIELDS = ("key", "key_order", "key_segment")


def _filled_in(positions: Positions) -> Positions:
    """The same positions with the defaults filled in, so that queries and keys can be cut separately."""
    query_order, key_order = positions.orders
    query_segment, key_segment = positions.segments or (None, None)
    query = numbers("query positions", positions.query)
    return replace(
        positions,
        query=query,
        key=query if positions.key is None else numbers("key positions", positions.key),
        query_order=query_order,
        key_order=key_order,
        query_segment=query_segment,
        key_segment=key_segment,
    )


def _narrowed(positions: Positions, names: tuple[str, ...], begin: int, end: int) -> Positions:
    """The positions with the named arrays cut to the tokens begin .. end - 1."""
    arrays = {name: getattr(positions, name) for name in names}
    return replace(positions, **{name: x[..., begin:end] for name, x in arrays.items() if x is not None})


def _cut(x: jax.Array, axis: int, block_size: int) -> jax.Array:
    """x with one axis cut into blocks, which become the first axis; the last block is padded with the last entry."""
    axis = axis % x.ndim
    if missing := -x.shape[axis] % block_size:
        last = lax.slice_in_dim(x, -1, None, axis=axis)  # jnp.pad slices every axis, which a sharded one does not allow
        x = jnp.concatenate([x, jnp.repeat(last, missing, axis=axis)], axis=axis)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, block_size, *x.shape[axis + 1 :]), axis, 0)


def _join(blocks: jax.Array, axis: int, length: int) -> jax.Array:
    """Undoes `_cut`."""
    axis = axis % (blocks.ndim - 1)
    x = jnp.moveaxis(blocks, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=axis)
