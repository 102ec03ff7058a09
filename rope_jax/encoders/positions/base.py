"""The positions of tokens, as explicit arrays that every encoder reads."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from .._internal.arrays import leading, pairwise

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
