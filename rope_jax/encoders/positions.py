"""Positions as data: explicit arrays that every encoder reads, made apart from the encoders.

Shapes: [..., T] int32 unless said otherwise. The random ones draw for each example's own length, never for the padded one: the
same key and length give the same positions whatever the padding. What stands past an example's length is in range and means
nothing.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ._internal.arrays import leading, pairwise

__all__ = ["Positions"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["query", "key", "length", "query_order", "key_order", "query_segment", "key_segment"],
    meta_fields=["axes"],
)
@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where the tokens stand: explicit arrays, never an arange inside an encoder.

    Position is what an encoder reads; order is who comes after whom, and so what a query may see. They differ where positions
    restart (packing) and where padding comes first, which a query must not see: give padded keys the largest order, 2^31 - 1.
    Order alone does not keep packed documents apart; segments do.

    Attributes:
      query: int or float [..., Tq], the positions of the queries; [axes, ..., Tq] with several axes.
      key: [..., Tk] or [axes, ..., Tk], those of the keys; None means the same as the queries (self-attention without a cache).
      length: int [...], each example's own unpadded number of input positions, the same from prefill to the last decoded
        token; None where it is not known, which dynamic frequency maps read as "the original length".
      query_order, key_order: int [..., Tq] and [..., Tk], on one scale: a query sees the keys whose order is not above its own.
        By default 0 .. T - 1; where `key` is given, the positions themselves, which count tokens if they are consecutive.
      query_segment, key_segment: int [..., Tq] and [..., Tk]: a query sees the keys of its own document only. None is one
        document; where `key` is None, key_segment is the queries' by default.
      axes: how many axes a position has (row and column: 2); None for the usual one, which has no axis of its own.
    """

    query: jax.Array
    key: jax.Array | None = None
    length: jax.Array | int | None = None
    query_order: jax.Array | None = None
    key_order: jax.Array | None = None
    query_segment: jax.Array | None = None
    key_segment: jax.Array | None = None
    axes: int | None = None

    @property
    def keys(self) -> jax.Array:
        """The key positions, [..., Tk]."""
        return self.query if self.key is None else self.key

    @property
    def orders(self) -> tuple[jax.Array, jax.Array]:
        """The order of queries and keys, [..., Tq] and [..., Tk], with the defaults filled in."""
        query, key = self.query_order, self.key_order
        if self.key is None:
            query = jnp.arange(self.query.shape[-1]) if query is None else query
            return query, query if key is None else key
        if self.axes is not None and (query is None or key is None):
            raise ValueError(
                f"positions of {self.axes} axes say nothing of order; give query_order and key_order where keys are given apart"
            )
        return self.query if query is None else query, self.key if key is None else key

    @property
    def segments(self) -> tuple[jax.Array, jax.Array] | None:
        """The documents of queries and keys, [..., Tq] and [..., Tk]; None: all are one. ValueError if some token has none."""
        query, key = self.query_segment, self.key_segment
        if query is None and key is None:
            return None
        key = query if key is None and self.key is None else key
        if query is None or key is None:
            raise ValueError(
                "segments keep documents apart where both queries and keys have them: give query_segment, and key_segment where "
                "keys are given apart"
            )
        for name, segment, at in (("query", query, self.query), ("key", key, self.keys)):
            if segment.shape[-1] != at.shape[-1]:
                raise ValueError(
                    f"{name}_segment is of {segment.shape[-1]} tokens, but {at.shape[-1]} {name} positions are given; "
                    "each needs one"
                )
        return query, key

    def require_fit(self, q: jax.Array | None, k: jax.Array | None) -> None:
        """ValueError unless these are the positions of q, [..., Tq, H, D], and k, [..., Tk, H, D]; None is not looked at."""
        for name, x, at in (("q", q, self.query), ("k", k, self.keys)):
            if x is not None and x.shape[-3] != at.shape[-1]:
                raise ValueError(
                    f"{name} {x.shape} has {x.shape[-3]} tokens, but there are {at.shape[-1]} positions of them; give "
                    f"{'query=' if name == 'q' else 'key='} one for each (with a cache: those of all its keys)"
                )

    def visible(self) -> jax.Array:
        """bool [..., Tq, Tk]: which keys a query may see: those of its own document that do not come after it."""
        query, key = pairwise(*self.orders)
        if self.segments is None:
            return key <= query
        query_segment, key_segment = pairwise(*self.segments)
        rank = max(query.ndim, query_segment.ndim)
        return leading(key <= query, rank) & leading(query_segment == key_segment, rank)

    def require_axes(self) -> None:
        """ValueError unless the arrays have the axes that are stated."""
        for name, x in (("query", self.query), ("key", self.keys)):
            if x.ndim < 2 or x.shape[0] != self.axes:
                raise ValueError(
                    f"{name} positions of {self.axes} axes must be [{self.axes}, ..., T], got {x.shape}; stack them first"
                )

    def along(self, axis: int | None, reader: str) -> "Positions":
        """These positions on one axis; tokens of a plain text stand at the same place on every axis.

        Args:
          axis: which; None if the encoder reads positions of one axis only.
          reader: the encoder's name, for the message.

        Raises:
          ValueError: the positions have several axes and `axis` names none of them.
        """
        require_axis(self.axes, axis, reader)
        if self.axes is None or axis is None:
            return self
        self.require_axes()
        key = None if self.key is None else self.key[axis]
        return replace(self, query=self.query[axis], key=key, axes=None)


def require_axis(axes: int | None, axis: int | None, reader: str) -> None:
    """ValueError if positions have so many axes (None: the usual one) and the encoder called `reader` names none of them."""
    if axes is not None and (axis is None or not 0 <= axis < axes):
        raise ValueError(
            f"{reader} reads {'one axis' if axis is None else f'axis {axis}'}, but the positions have {axes}, counted from 0; "
            "use RoPE with sections=, which reads several, or a bias with axis=, which reads one of them"
        )


def contiguous(length: int, *, offset: int | jax.Array = 0) -> jax.Array:
    """offset, offset + 1, ..., offset + length - 1.

    Args:
      length: how many, a Python int.
      offset: int [...], where to begin; may be traced; an array gives each example its own.

    Returns:
      int32 [..., length].

    Raises:
      ValueError: negative length, or an offset that is not of an integer dtype.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    if not jnp.issubdtype(jnp.result_type(offset), jnp.integer):
        raise ValueError(f"offset must be an int or of an integer dtype, got {offset!r}")
    start = jnp.expand_dims(jnp.asarray(offset, jnp.int32), -1)
    steps = jnp.arange(length, dtype=jnp.int32)
    return start + jnp.reshape(steps, (1,) * (start.ndim - 1) + (-1,))


def from_mask(mask: jax.Array) -> jax.Array:
    """Positions of the real tokens among padding: [0, 0, 1, 1, 1] gives the real ones 0, 1, 2; padding has 0 before them.

    Args:
      mask: bool or int [..., T], true where a token is real.

    Returns:
      int32 [..., T]: real tokens before this one. Padding stays visible unless its `Positions.key_order` is the largest.
    """
    _require_given("from_mask", "the mask of real tokens", mask)
    real = jnp.asarray(mask).astype(bool).astype(jnp.int32)
    return jnp.maximum(jnp.cumsum(real, axis=-1) - 1, 0)


def from_segment_ids(ids: jax.Array) -> jax.Array:
    """Positions in packed rows, which begin anew with every document: [1, 1, 1, 2, 2] gives [0, 1, 2, 0, 1].

    Args:
      ids: int [..., T], equal for neighbours of one document; an id that comes back is a new document.

    Returns:
      int32 [..., T]. Attention keeps the documents apart by `Positions(query_segment=jnp.cumsum(positions == 0, axis=-1))`: ids
      that do not come back.
    """
    _require_given("from_segment_ids", "the segment ids of the tokens", ids)
    ids = jnp.asarray(ids)
    at = jnp.broadcast_to(jnp.arange(ids.shape[-1], dtype=jnp.int32), ids.shape)
    begins = jnp.concatenate([jnp.ones_like(ids[..., :1], bool), ids[..., 1:] != ids[..., :-1]], axis=-1)
    return at - jax.lax.cummax(jnp.where(begins, at, 0), axis=ids.ndim - 1)


def context_parallel(length: int, *, ranks: int, rank: int) -> jax.Array:
    """The positions that one rank holds when a sequence is cut zig-zag, so that causal attention costs every rank the same.

    The sequence is cut into 2 * ranks chunks; rank r has chunk r and chunk 2 * ranks - 1 - r (as in Llama 3, arXiv:2407.21783,
    section 3.3.2): 8 tokens over 2 ranks are 0, 1, 6, 7 and 2, 3, 4, 5.

    Args:
      length: of the whole sequence; a multiple of 2 * ranks.
      ranks: how many share it.
      rank: which, from 0.

    Returns:
      int32 [length / ranks].
    """
    if ranks < 1 or not 0 <= rank < ranks:
        raise ValueError(f"context_parallel needs 0 <= rank < ranks, got rank={rank} and ranks={ranks}")
    if length % (2 * ranks):
        raise ValueError(
            f"context_parallel cuts a sequence into 2 * ranks = {2 * ranks} chunks, which do not divide length {length}; "
            f"pad it to {-(-length // (2 * ranks)) * 2 * ranks}"
        )
    chunks = np.arange(length, dtype=np.int32).reshape(2 * ranks, -1)
    return jnp.asarray(np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]]))


def random_offset(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int) -> jax.Array:
    """One uniform offset an example, so that all rows of a learned table are trained.

    Args:
      key: a random key.
      lengths: int [...], each example's own length; at most max_position.
      size: T, the padded length.
      max_position: positions are from 0 to max_position - 1.

    Returns:
      int32 [..., size]; past an example's length it goes on, up to the largest position.

    Raises:
      ValueError: an example, or where lengths are traced the padded length, that max_position does not hold; an example above
        the padded length; lengths that are not integers.
    """
    lengths = _require_room(lengths, size, max_position)
    offset = jax.random.randint(key, lengths.shape, 0, jnp.maximum(max_position - lengths, 0) + 1)
    return jnp.minimum(contiguous(size, offset=offset), max_position - 1)


def randomized(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int) -> jax.Array:
    """A sorted random subset of 0 .. max_position - 1, one an example (Ruoss et al. 2023, arXiv:2305.16843, section 3).

    Args and result as in `random_offset`.
    """
    lengths = _require_room(lengths, size, max_position)
    drawn = jax.random.uniform(key, (*lengths.shape, max_position))
    _, largest = jax.lax.top_k(drawn, min(size, max_position))  # where the size largest numbers stand: a subset in random order
    kept = jnp.broadcast_to(jnp.arange(largest.shape[-1]), largest.shape) < jnp.expand_dims(lengths, -1)
    found = jnp.sort(jnp.where(kept, largest.astype(jnp.int32), max_position - 1), axis=-1)
    return jnp.pad(found, [(0, 0)] * lengths.ndim + [(0, size - found.shape[-1])], mode="edge")


def random_float(key: jax.Array, lengths: jax.Array, size: int, *, max_position: float) -> jax.Array:
    """Sorted uniform reals in [0, max_position), one draw an example (arXiv:2602.14050).

    Args and result as in `random_offset`, but float32.
    """
    if not max_position > 0:
        raise ValueError(f"random_float max_position must be positive, got {max_position}")
    lengths = _require_lengths(lengths, size)
    at = jnp.broadcast_to(jnp.arange(size), (*lengths.shape, size))
    # a draw of its own for every place, so that the padding changes nothing
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(size))
    drawn = jnp.moveaxis(jax.vmap(lambda key: jax.random.uniform(key, lengths.shape))(keys), 0, -1)
    return max_position * jnp.sort(jnp.where(at < jnp.expand_dims(lengths, -1), drawn, jnp.float32(1 - 2**-24)), axis=-1)


def pose(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int, chunks: int = 2) -> jax.Array:
    """Chunks of an example with random skips between them (Zhu et al. 2024, arXiv:2309.10400, section 3.2).

    The first chunk begins at 0; where the others begin in the example, and how much is skipped before them, is uniform.

    Args:
      key, lengths, size, max_position: as in `random_offset`.
      chunks: how many; the paper's is 2.
    """
    if chunks < 1:
        raise ValueError(f"pose chunks must be at least 1, got {chunks}; the paper's is 2")
    lengths = _require_room(lengths, size, max_position)
    cut_key, skip_key = jax.random.split(key)
    shape = (*lengths.shape, chunks - 1)
    cuts = jnp.sort(jax.random.randint(cut_key, shape, 1, jnp.maximum(jnp.expand_dims(lengths, -1), 2)), axis=-1)
    skips = jnp.sort(jax.random.randint(skip_key, shape, 0, jnp.expand_dims(jnp.maximum(max_position - lengths, 0), -1) + 1), -1)
    at = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*lengths.shape, size))
    passed = jnp.expand_dims(at, -1) >= jnp.expand_dims(cuts, -2)
    skipped = jnp.max(jnp.where(passed, jnp.expand_dims(skips, -2), 0), axis=-1, initial=0)
    return jnp.minimum(at + skipped, max_position - 1)


def grid(tokens: jax.Array, *, separator: int, order: Literal["forward", "snake"] = "forward") -> jax.Array:
    """(row, column) read off the tokens: separators seen so far, and distance since the last one (idea: arXiv:2607.16072).

    A separator is the first of its row. "snake" turns every second row round, counted from that of the first token: columns then
    count down from the end of the row before. It thereby knows that the task reverses: an oracle.

    Args:
      tokens: int [..., T].
      separator: the token that begins a row.
      order: "forward" or "snake".

    Returns:
      int32 [2, ..., T]: rows, then columns. Where a turned row is longer than the one before, its columns go below 0.

    Raises:
      ValueError: an unknown order, or (where tokens are concrete) a separator that never occurs.
    """
    _require_given("grid", "the tokens", tokens)
    tokens = jnp.asarray(tokens)
    if order not in ("forward", "snake"):
        raise ValueError(f"grid order must be 'forward' or 'snake', got {order!r}")
    is_separator = tokens == separator
    if not isinstance(tokens, jax.core.Tracer) and not bool(jnp.all(jnp.any(is_separator, axis=-1))):
        raise ValueError(f"grid separator {separator} never occurs in some row of tokens; name the token that begins a row")
    rows = jnp.cumsum(is_separator.astype(jnp.int32), axis=-1)
    at = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.int32), tokens.shape)
    columns = at - jax.lax.cummax(jnp.where(is_separator, at, 0), axis=tokens.ndim - 1)
    if order == "snake":
        # the last column of the row before, for every token: it stands just before the token's own row
        before = jnp.maximum(at - columns - 1, 0)
        turned = (rows - rows[..., :1]) % 2 == 1
        columns = jnp.where(turned, jnp.take_along_axis(columns, before, axis=-1) - columns, columns)
    return jnp.stack([rows, columns])


def _require_room(lengths: jax.Array, size: int, max_position: int) -> jax.Array:
    """The lengths as int32, if max_position holds them."""
    lengths = _require_lengths(lengths, size)
    traced = isinstance(lengths, jax.core.Tracer)
    longest = size if traced else int(jnp.max(lengths, initial=0))
    if max_position < max(longest, 1):
        what = "the padded length" if traced else "an example of length"
        raise ValueError(f"max_position {max_position} is below {what} {longest}; raise it to that")
    return lengths


def _require_lengths(lengths: jax.Array, size: int) -> jax.Array:
    """The lengths as int32, if they are whole and the padded length holds them."""
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(f"lengths must be integers, got {lengths.dtype}; they count tokens")
    if not isinstance(lengths, jax.core.Tracer) and int(jnp.max(lengths, initial=0)) > size:
        raise ValueError(f"size {size} is below an example of length {int(jnp.max(lengths))}; it is the padded length")
    return lengths.astype(jnp.int32)


def _require_given(name: str, what: str, value: object) -> None:
    if value is None:
        raise ValueError(f"{name} reads positions off {what}, got None; give it, or use contiguous, which needs nothing")
