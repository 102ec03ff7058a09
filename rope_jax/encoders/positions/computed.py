"""Positions that are computed: counted, or read off masks, segments or tokens.

Arrays are int32 [..., T] unless a docstring says otherwise.
"""

from typing import Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from .._internal.inputs import INT32, flags, integers, is_traced, known, whole

__all__ = ["context_parallel", "contiguous", "from_mask", "from_segment_ids", "grid"]


def contiguous(length: int, *, offset: int | jax.Array = 0) -> jax.Array:
    """offset, offset + 1, ..., offset + length - 1.

    Args:
      length: how many, a Python int, or a symbolic size under `jax.export`.
      offset: int [...], the first position; may be traced, and is not checked then. An array has one offset for each example.

    Returns:
      int32 [..., length].

    Raises:
      ValueError: a negative length, an offset that is not of an integer dtype, or positions that int32 does not hold.
    """
    length, start = whole("length", length, lowest=0, symbolic=True), integers("offset", offset)
    first = known(start)
    if first is not None and first.size and not jax.export.is_symbolic_dim(length) and first.max() > INT32.max - length + 1:
        raise ValueError(
            f"offset {first.max()} and length {length} give positions up to {int(first.max()) + length - 1}, which int32 does "
            "not hold; lower the offset"
        )
    start = jnp.expand_dims(start.astype(jnp.int32), -1)
    steps = jnp.arange(length, dtype=jnp.int32)
    return start + jnp.reshape(steps, (1,) * (start.ndim - 1) + (-1,))


def from_mask(mask: jax.Array) -> jax.Array:
    """Positions of real tokens among padding: the mask [0, 0, 1, 1, 1] gives [0, 0, 0, 1, 2].

    Args:
      mask: bool or int [..., T], true where a token is real; also 0.0 and 1.0.

    Returns:
      int32 [..., T]: the number of real tokens before this one. Padding stays visible unless it comes last in the order of
      queries and keys: `order = jnp.where(mask, count, 2**31 - 1)`, `Positions(query=count, query_order=order)`.

    Raises:
      ValueError: the mask holds other real numbers, such as -inf, or has no axis of tokens.
    """
    _require_given("from_mask", "the mask of real tokens", mask)
    mask = flags("the mask", mask)
    if not mask.ndim:
        raise ValueError("the mask must have an axis of tokens, [..., T], got a single value; give an array")
    real = mask.astype(jnp.int32)
    return jnp.maximum(jnp.cumsum(real, axis=-1) - 1, 0)


def from_segment_ids(ids: jax.Array) -> jax.Array:
    """Positions in packed rows, which restart with every document: [1, 1, 1, 2, 2] gives [0, 1, 2, 0, 1].

    Args:
      ids: int [..., T], equal for neighbours of one document; an id that is used again starts a new document.

    Returns:
      int32 [..., T]. To separate the documents in attention, give each an id that is used once:
      `Positions(query_segment=jnp.cumsum(positions == 0, axis=-1))`.
    """
    _require_given("from_segment_ids", "the segment ids of the tokens", ids)
    ids = _per_token("ids", ids)
    index = jnp.broadcast_to(jnp.arange(ids.shape[-1], dtype=jnp.int32), ids.shape)
    begins = jnp.concatenate([jnp.ones_like(ids[..., :1], bool), ids[..., 1:] != ids[..., :-1]], axis=-1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=ids.ndim - 1)


def context_parallel(length: int, *, ranks: int, rank: int) -> jax.Array:
    """The positions of one rank when a sequence is cut zig-zag, so that causal attention costs every rank the same.

    The sequence is cut into 2 * ranks chunks. Rank r has the chunks r and 2 * ranks - 1 - r (as in Llama 3, arXiv:2407.21783,
    section 3.3.2): of 8 tokens and 2 ranks, rank 0 has 0, 1, 6, 7 and rank 1 has 2, 3, 4, 5.

    Args:
      length: tokens of the whole sequence; a multiple of 2 * ranks.
      ranks: the number of ranks.
      rank: which rank, counted from 0.

    Returns:
      int32 [length / ranks].
    """
    length, ranks, rank = (whole(name, x, lowest=0) for name, x in (("length", length), ("ranks", ranks), ("rank", rank)))
    if ranks < 1 or not 0 <= rank < ranks:
        raise ValueError(f"context_parallel needs 0 <= rank < ranks, got rank={rank} and ranks={ranks}")
    if length % (2 * ranks):
        raise ValueError(
            f"context_parallel cuts a sequence into 2 * ranks = {2 * ranks} chunks, which do not divide length {length}; "
            f"pad it to {-(-length // (2 * ranks)) * 2 * ranks}"
        )
    chunks = np.arange(length, dtype=np.int32).reshape(2 * ranks, -1)
    return jnp.asarray(np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]]))


def grid(tokens: jax.Array, *, separator: int, order: Literal["forward", "snake"] = "forward") -> jax.Array:
    """Row and column from separators: the separators so far, and the distance since the last one (idea: arXiv:2607.16072).

    A separator is the first token of its row. "snake" reverses every second row, counted from the row of the first token: its
    columns count down from the last column of the row before. This uses that the task reverses the text, so it is an oracle.

    Args:
      tokens: int [..., T].
      separator: the token that begins a row.
      order: "forward" or "snake".

    Returns:
      int32 [2, ..., T]: rows, then columns. Where a reversed row is longer than the row before it, columns go below 0.

    Raises:
      ValueError: an unknown order, or a separator that never occurs (where tokens are concrete).
    """
    _require_given("grid", "the tokens", tokens)
    tokens, separator = _per_token("tokens", tokens), whole("separator", separator, lowest=INT32.min)
    if order not in ("forward", "snake"):
        raise ValueError(f"grid order must be 'forward' or 'snake', got {order!r}")
    is_separator = tokens == separator
    if not is_traced(tokens) and not bool(jnp.all(jnp.any(is_separator, axis=-1))):
        raise ValueError(f"grid separator {separator} does not occur in every example; name the token that begins a row")
    rows = jnp.cumsum(is_separator.astype(jnp.int32), axis=-1)
    index = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.int32), tokens.shape)
    columns = index - jax.lax.cummax(jnp.where(is_separator, index, 0), axis=tokens.ndim - 1)
    if order == "snake":
        # for every token, the index of the last token of the row before
        before = jnp.maximum(index - columns - 1, 0)
        is_reversed = (rows - rows[..., :1]) % 2 == 1
        columns = jnp.where(is_reversed, jnp.take_along_axis(columns, before, axis=-1) - columns, columns)
    return jnp.stack([rows, columns])


def _per_token(name: str, x: jax.Array) -> jax.Array:
    """x as int32 [..., T]."""
    x = integers(name, x)
    if not x.ndim:
        raise ValueError(f"{name} must have an axis of tokens, [..., T], got a single number; give an array")
    return x


def _require_given(name: str, what: str, value: object) -> None:
    if value is None:
        raise ValueError(f"{name} computes positions from {what}, got None; give it, or use contiguous, which needs nothing")
