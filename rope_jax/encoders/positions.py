"""Positions as data: explicit arrays that every encoder reads, and the functions that make them.

Arrays are int32 [..., T] unless a docstring says otherwise. The random functions draw for the unpadded length of each example:
the same key and length give the same positions with any padding. Entries past the length of an example are in range and have
no meaning.
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
    """The positions of tokens, as explicit arrays; encoders never make an arange themselves.

    Encoders read the positions. The order of tokens decides which keys a query may see. The two differ where positions restart
    (packing), and where padding comes first: give padded keys the largest order, 2^31 - 1, so that no query sees them. Order
    alone does not separate packed documents; segments do.

    Attributes:
      query: int or float [..., Tq], the positions of the queries; [axes, ..., Tq] with several axes.
      key: [..., Tk] or [axes, ..., Tk], the positions of the keys; None means those of the queries (self-attention without a
        cache).
      length: int [...], the unpadded number of input positions of each example. It stays the same from prefill to the last
        decoded token. None: unknown, which dynamic frequency maps read as the original length.
      query_order, key_order: int [..., Tq] and [..., Tk], on one scale: a query sees the keys whose order is at most the order of
        the query. The default is 0 .. T - 1 where `key` is None. Otherwise it is the positions themselves, which count tokens if
        they are consecutive.
      query_segment, key_segment: int [..., Tq] and [..., Tk]: a query sees only the keys of the same document. None is one
        document. Where `key` is None, key_segment is query_segment by default.
      axes: how many axes a position has (row and column: 2). None is one axis, for which the arrays have no leading dimension.
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
                f"positions of {self.axes} axes do not define an order; give query_order and key_order together with key="
            )
        return self.query if query is None else query, self.key if key is None else key

    @property
    def segments(self) -> tuple[jax.Array, jax.Array] | None:
        """The documents of queries and keys, [..., Tq] and [..., Tk]; None is one document. ValueError if a token has none."""
        query, key = self.query_segment, self.key_segment
        if query is None and key is None:
            return None
        key = query if key is None and self.key is None else key
        if query is None or key is None:
            raise ValueError(
                "segments must be known for queries and keys, but only one of them has segments; give query_segment, and with "
                "key= also key_segment"
            )
        for name, segment, places in (("query", query, self.query), ("key", key, self.keys)):
            if segment.shape[-1] != places.shape[-1]:
                raise ValueError(
                    f"{name}_segment has {segment.shape[-1]} tokens, but there are {places.shape[-1]} {name} positions; give one "
                    "segment for each position"
                )
        return query, key

    def require_fit(self, q: jax.Array | None, k: jax.Array | None) -> None:
        """Raises ValueError unless each token of q, [..., Tq, H, D], and k, [..., Tk, H, D], has a position; skips None."""
        for name, x, places in (("q", q, self.query), ("k", k, self.keys)):
            if x is not None and x.shape[-3] != places.shape[-1]:
                raise ValueError(
                    f"{name} {x.shape} has {x.shape[-3]} tokens, but there are {places.shape[-1]} positions of them; give "
                    f"{'query=' if name == 'q' else 'key='} one for each (with a cache: those of all its keys)"
                )

    def visible(self) -> jax.Array:
        """bool [..., Tq, Tk]: which keys a query may see: those of the same document that do not come after the query."""
        query, key = pairwise(*self.orders)
        if self.segments is None:
            return key <= query
        query_segment, key_segment = pairwise(*self.segments)
        rank = max(query.ndim, query_segment.ndim)
        return leading(key <= query, rank) & leading(query_segment == key_segment, rank)

    def require_axes(self) -> None:
        """Raises ValueError unless the leading dimension of the arrays is `axes`."""
        for name, x in (("query", self.query), ("key", self.keys)):
            if x.ndim < 2 or x.shape[0] != self.axes:
                raise ValueError(
                    f"{name} positions of {self.axes} axes must be [{self.axes}, ..., T], got {x.shape}; stack them first"
                )

    def along(self, axis: int | None, reader: str) -> "Positions":
        """These positions on one axis; a token of plain text has the same position on every axis.

        Args:
          axis: which axis; None if the encoder reads positions of one axis only.
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
    """Raises ValueError if positions have `axes` axes (None: no leading dimension) and `axis` names none of them.

    The message names the encoder `reader`.
    """
    if axes is not None and (axis is None or not 0 <= axis < axes):
        raise ValueError(
            f"{reader} reads {'one axis' if axis is None else f'axis {axis}'}, but the positions have {axes}, counted from 0; "
            "use RoPE with sections=, which reads several, or a bias with axis=, which reads one of them"
        )


def contiguous(length: int, *, offset: int | jax.Array = 0) -> jax.Array:
    """offset, offset + 1, ..., offset + length - 1.

    Args:
      length: how many, a Python int.
      offset: int [...], the first position; may be traced. An array has one offset for each example.

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
    """Positions of real tokens among padding: the mask [0, 0, 1, 1, 1] gives [0, 0, 0, 1, 2].

    Args:
      mask: bool or int [..., T], true where a token is real.

    Returns:
      int32 [..., T]: the number of real tokens before this one. Padding stays visible unless it comes last in the order of
      queries and keys: `order = jnp.where(mask, count, 2**31 - 1)`, `Positions(query=count, query_order=order)`.
    """
    _require_given("from_mask", "the mask of real tokens", mask)
    real = jnp.asarray(mask).astype(bool).astype(jnp.int32)
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
    ids = jnp.asarray(ids)
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
    """One uniform offset for each example, so that all rows of a learned table are trained.

    Args:
      key: a random key.
      lengths: int [...], the unpadded length of each example; at most max_position.
      size: T, the padded length.
      max_position: positions are from 0 to max_position - 1.

    Returns:
      int32 [..., size]; past the length of an example, positions go on up to the largest one.

    Raises:
      ValueError: max_position is below the length of an example (where lengths are traced: below the padded length), an example
        is longer than the padded length, or lengths are not integers.
    """
    lengths = _require_room(lengths, size, max_position)
    offset = jax.random.randint(key, lengths.shape, 0, jnp.maximum(max_position - lengths, 0) + 1)
    return jnp.minimum(contiguous(size, offset=offset), max_position - 1)


def randomized(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int) -> jax.Array:
    """A sorted random subset of 0 .. max_position - 1 for each example (Ruoss et al. 2023, arXiv:2305.16843, section 3).

    Args and result as in `random_offset`.
    """
    lengths = _require_room(lengths, size, max_position)
    drawn = jax.random.uniform(key, (*lengths.shape, max_position))
    _, largest = jax.lax.top_k(
        drawn, min(size, max_position)
    )  # the indices of the `size` largest draws: a subset in random order
    kept = jnp.broadcast_to(jnp.arange(largest.shape[-1]), largest.shape) < jnp.expand_dims(lengths, -1)
    subset = jnp.sort(jnp.where(kept, largest.astype(jnp.int32), max_position - 1), axis=-1)
    return jnp.pad(subset, [(0, 0)] * lengths.ndim + [(0, size - subset.shape[-1])], mode="edge")


def random_float(key: jax.Array, lengths: jax.Array, size: int, *, max_position: float) -> jax.Array:
    """Sorted uniform reals in [0, max_position), drawn for each example (arXiv:2602.14050).

    Args and result as in `random_offset`, but float32.
    """
    if not max_position > 0:
        raise ValueError(f"random_float max_position must be positive, got {max_position}")
    lengths = _require_lengths(lengths, size)
    index = jnp.broadcast_to(jnp.arange(size), (*lengths.shape, size))
    # every token has its own key, so that padding changes no draw
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(size))
    drawn = jnp.moveaxis(jax.vmap(lambda key: jax.random.uniform(key, lengths.shape))(keys), 0, -1)
    return max_position * jnp.sort(jnp.where(index < jnp.expand_dims(lengths, -1), drawn, jnp.float32(1 - 2**-24)), axis=-1)


def pose(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int, chunks: int = 2) -> jax.Array:
    """Chunks of an example with random skips between them (Zhu et al. 2024, arXiv:2309.10400, section 3.2).

    The first chunk begins at position 0. Where the others begin in the example is uniform, and so is what is skipped before them.

    Args:
      key, lengths, size, max_position: as in `random_offset`.
      chunks: how many chunks; the paper has 2.
    """
    if chunks < 1:
        raise ValueError(f"pose chunks must be at least 1, got {chunks}; the paper has 2")
    lengths = _require_room(lengths, size, max_position)
    cut_key, skip_key = jax.random.split(key)
    shape = (*lengths.shape, chunks - 1)
    cuts = jnp.sort(jax.random.randint(cut_key, shape, 1, jnp.maximum(jnp.expand_dims(lengths, -1), 2)), axis=-1)
    skips = jnp.sort(jax.random.randint(skip_key, shape, 0, jnp.expand_dims(jnp.maximum(max_position - lengths, 0), -1) + 1), -1)
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*lengths.shape, size))
    passed = jnp.expand_dims(index, -1) >= jnp.expand_dims(cuts, -2)
    skipped = jnp.max(jnp.where(passed, jnp.expand_dims(skips, -2), 0), axis=-1, initial=0)
    return jnp.minimum(index + skipped, max_position - 1)


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
    tokens = jnp.asarray(tokens)
    if order not in ("forward", "snake"):
        raise ValueError(f"grid order must be 'forward' or 'snake', got {order!r}")
    is_separator = tokens == separator
    if not isinstance(tokens, jax.core.Tracer) and not bool(jnp.all(jnp.any(is_separator, axis=-1))):
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


def _require_room(lengths: jax.Array, size: int, max_position: int) -> jax.Array:
    """The lengths as int32; raises ValueError if max_position is below one of them."""
    lengths = _require_lengths(lengths, size)
    traced = isinstance(lengths, jax.core.Tracer)
    longest = size if traced else int(jnp.max(lengths, initial=0))
    if max_position < max(longest, 1):
        what = "the padded length" if traced else "an example of length"
        raise ValueError(f"max_position {max_position} is below {what} {longest}; raise it to that")
    return lengths


def _require_lengths(lengths: jax.Array, size: int) -> jax.Array:
    """The lengths as int32; raises ValueError if they are not integers, or if one is above the padded length."""
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(f"lengths must be integers, got {lengths.dtype}; they count tokens")
    if not isinstance(lengths, jax.core.Tracer) and int(jnp.max(lengths, initial=0)) > size:
        raise ValueError(f"size {size} is below an example of length {int(jnp.max(lengths))}; it is the padded length")
    return lengths.astype(jnp.int32)


def _require_given(name: str, what: str, value: object) -> None:
    if value is None:
        raise ValueError(f"{name} computes positions from {what}, got None; give it, or use contiguous, which needs nothing")
