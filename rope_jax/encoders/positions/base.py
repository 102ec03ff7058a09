"""The positions of tokens, as explicit arrays that every encoder reads."""

import json
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from .._internal.arrays import batch_of, fits_batch, leading, pairwise
from .._internal.inputs import INT32, integers, known, shown, tokens, whole

__all__ = ["Positions"]

_QUERY = ("query", "query_order", "query_segment")  # what each token of the queries has, if it is given
_KEY = ("key", "key_order", "key_segment")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["query", "key", "length", "query_order", "key_order", "query_segment", "key_segment"],
    meta_fields=["axes", "causal"],
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
      causal: whether the order decides which keys a query sees. With False it sees all keys of its document, before and after it
        (two-sided attention); give padded keys a key_segment of their own, so that no query sees them.

    Arrays are of any integer or real dtype, in which positions are within the range of int32. Encoders refuse other values where
    they are concrete. Traced values are not checked.
    """

    query: jax.Array
    key: jax.Array | None = None
    length: jax.Array | int | None = None
    query_order: jax.Array | None = None
    key_order: jax.Array | None = None
    query_segment: jax.Array | None = None
    key_segment: jax.Array | None = None
    axes: int | None = None
    causal: bool = True

    def __post_init__(self) -> None:
        # the arrays are checked by their readers: here they may be anything that JAX maps over
        if not isinstance(self.causal, (bool, np.bool_)):
            raise ValueError(f"Positions causal must be True or False, got {shown(self.causal)}")
        object.__setattr__(self, "causal", bool(self.causal))
        if self.axes is not None:
            object.__setattr__(self, "axes", whole("Positions axes", self.axes, lowest=1))

    @property
    def keys(self) -> jax.Array:
        """The key positions, [..., Tk]."""
        return self.query if self.key is None else self.key

    @property
    def orders(self) -> tuple[jax.Array, jax.Array]:
        """The order of queries and keys, [..., Tq] and [..., Tk], with the defaults filled in."""
        length = tokens("query positions", self.query).shape[-1]
        query, key = self._per_token("query_order", self.query), self._per_token("key_order", self.keys)
        if self.key is None:
            query = jnp.arange(length, dtype=jnp.int32) if query is None else query
            return query, query if key is None else key
        if self.axes is not None and (query is None or key is None):
            raise ValueError(
                f"positions of {self.axes} axes do not define an order; give query_order and key_order together with key="
            )
        return (
            tokens("query positions", self.query) if query is None else query,
            tokens("key positions", self.key) if key is None else key,
        )

    @property
    def segments(self) -> tuple[jax.Array, jax.Array] | None:
        """The documents of queries and keys, [..., Tq] and [..., Tk]; None is one document. ValueError if a token has none."""
        query, key = self._per_token("query_segment", self.query), self._per_token("key_segment", self.keys)
        if query is None and key is None:
            return None
        key = query if key is None and self.key is None else key
        if query is None or key is None:
            raise ValueError(
                "segments must be known for queries and keys, but only one of them has segments; give query_segment, and with "
                "key= also key_segment"
            )
        return query, key

    def _per_token(self, field: str, places: jax.Array) -> jax.Array | None:
        """A field as integers; None if it is not given. ValueError unless it has one entry for each position of `places`."""
        value = getattr(self, field)
        if value is None:
            return None
        value, length = integers(field, value), np.shape(places)[-1]
        if value.shape[-1:] != (length,):
            raise ValueError(f"{field} of shape {value.shape} must have {length} entries, one for each position; give the others")
        return value

    def require_fit(self, q: jax.Array | None, k: jax.Array | None) -> None:
        """Raises ValueError unless each token of q, [..., Tq, H, D], and k, [..., Tk, H, D], has one position; skips None.

        Where orders or segments are given, each token has one of them too. Leading axes are those of q and k, are 1, or are
        missing.
        """
        for name, x in (("q", q), ("k", k)):
            if x is not None and x.ndim < 3:
                raise ValueError(f"{name} must have the axes [..., T, H, D], got {x.shape}; reshape it")
        batch = batch_of(*(x.shape[:-3] for x in (q, k) if x is not None))
        if q is not None:
            self._require_tokens("q", q.shape, q.shape[-3], batch, _QUERY)
        if k is not None:
            self._require_tokens("k", k.shape, k.shape[-3], batch, ("query" if self.key is None else "key", *_KEY[1:]))

    def require_embeddings(self, x: jax.Array) -> None:
        """Raises ValueError unless each token of x, [..., T, width], has one position, as in `require_fit`."""
        if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"x must be floats with the axes [..., T, width], got {x.dtype} {x.shape}; reshape or cast it")
        self._require_tokens("x", x.shape, x.shape[-2], x.shape[:-2], _QUERY)

    def _require_tokens(
        self, name: str, shape: tuple[int, ...], length: int, batch: tuple[int, ...], fields: tuple[str, ...]
    ) -> None:
        """Raises ValueError unless the fields have one entry for each of `length` tokens of an array called `name`."""
        for field in fields:
            value = getattr(self, field)
            if value is None:
                continue
            *leads, tokens = np.shape(value) or (0,)
            leads = leads[1:] if self.axes is not None and field in ("query", "key") else leads
            if tokens != length:
                needed = "key" if name == "k" and field == "query" else field
                raise ValueError(
                    f"{name} {shape} has {length} tokens, but {field}= of shape {np.shape(value)} is for {tokens}; give "
                    f"{needed}= one entry for each token (with a cache: for each of its keys)"
                )
            if not fits_batch(tuple(leads), batch):
                raise ValueError(
                    f"{field}= of shape {np.shape(value)} has the leading axes {tuple(leads)}, but {name} {shape} has {batch}; "
                    "use the same, or 1, or none"
                )

    def require_causal(self, reader: str) -> None:
        """Raises ValueError if attention is two-sided: `reader`, an encoder, is defined for causal attention."""
        if not self.causal:
            raise ValueError(
                f"{reader} is defined for causal attention, but these positions have causal=False; use another encoder"
            )

    def require_counted(self, reader: str) -> None:
        """Raises ValueError if all keys have one order, where it is concrete: `reader`, an encoder, counts tokens by their order.

        Padded keys, of the largest order, do not count; where there are documents, each may be a single token.
        """
        order = known(self.orders[1])
        if order is None or self.segments is not None or order.shape[-1] < 2:
            return
        real = order != INT32.max
        same = np.max(order, axis=-1, where=real, initial=INT32.min) == np.min(order, axis=-1, where=real, initial=INT32.max)
        if np.any(same & (np.sum(real, axis=-1) > 1)):
            raise ValueError(
                f"{reader} counts tokens by their order, but all keys have the same order; for two-sided attention leave the "
                "order out and give Positions(causal=False)"
            )

    def visible(self) -> jax.Array:
        """bool [..., Tq, Tk]: which keys a query may see.

        Those of the same document; with `causal`, of these the ones that do not come after the query.
        """
        query, key = pairwise(*self.orders)
        in_order = key <= query if self.causal else jnp.ones(jnp.broadcast_shapes(query.shape, key.shape), bool)
        if self.segments is None:
            return in_order
        query_segment, key_segment = pairwise(*self.segments)
        batch_of(in_order.shape[:-2], jnp.broadcast_shapes(query_segment.shape, key_segment.shape)[:-2])
        rank = max(in_order.ndim, query_segment.ndim)
        return leading(in_order, rank) & leading(query_segment == key_segment, rank)

    def require_axes(self) -> None:
        """Raises ValueError unless the leading dimension of the arrays is `axes`."""
        for name, x in (("query", self.query), ("key", self.keys)):
            if np.ndim(x) < 2 or np.shape(x)[0] != self.axes:
                raise ValueError(
                    f"{name} positions of {self.axes} axes must be [{self.axes}, ..., T], got {np.shape(x)}; stack them first"
                )

    def along(self, axis: int | None, reader: str) -> "Positions":
        """These positions on one axis, as int32 or float32; a token of plain text has the same position on every axis.

        Args:
          axis: which axis; None if the encoder reads positions of one axis only.
          reader: the encoder's name, for the message.

        Raises:
          ValueError: the positions have several axes and `axis` names none of them, or they are no positions: see `Positions`.
        """
        require_axis(self.axes, axis, reader)
        query, key = self.query, self.key
        if self.axes is not None and axis is not None:
            self.require_axes()
            query, key = query[axis], None if key is None else key[axis]
        query = tokens(f"{reader}: query positions", query)
        key = None if key is None else tokens(f"{reader}: key positions", key)
        return replace(self, query=query, key=key, axes=None)


def require_axis(axes: int | None, axis: int | None, reader: str) -> None:
    """Raises ValueError if positions have `axes` axes (None: no leading dimension) and `axis` names none of them.

    The message names the encoder `reader`.
    """
    if axes is not None and (axis is None or not 0 <= axis < axes):
        raise ValueError(
            f"{reader} reads {'one axis' if axis is None else f'axis {axis}'}, but the positions have {axes}, counted from 0; "
            "use RoPE with sections=, which reads several, or a bias with axis=, which reads one of them"
        )


jax.export.register_pytree_node_serialization(
    Positions,
    serialized_name=f"{Positions.__module__}.Positions",
    serialize_auxdata=lambda meta: json.dumps(meta).encode(),
    deserialize_auxdata=lambda data: tuple(json.loads(data)),
)
