"""What a position encoding is to a model: parameters, tables, and three doors.

An encoding acts in one of three places. It adds to the input (`embed`), turns queries and keys (`rotate`) or adds to the
attention logits (`bias`). A model opens all three doors, always; a door that an encoder does not define is the identity.

What flows, once a forward pass::

    params --prepare(length)--> prepared --tables(positions)--> tables --> embed, rotate, bias (every layer)

`prepare` settles what depends on the parameters and the current length alone (RoPE: its frequencies). Two encoders that
differ in nothing else share one compiled program, which is how one trained model is evaluated under many scaling rules.

Shape legend: B batch, T time, H heads, D head dim, R rotary dim.
"""

import dataclasses
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.encoders.checked import Checked

__all__ = ["Dims", "Encoder", "NoPE", "Positions"]

Params = Any  # a pytree of arrays; {} when nothing is learned
Prepared = Any  # a pytree of arrays
Tables = Any  # a pytree of arrays


@dataclass(frozen=True, kw_only=True)
class Dims:
    """The sizes of the model that an encoder is plugged into.

    Attributes:
      width: features of the residual stream.
      num_heads: attention heads.
      head_dim: features of one head.
    """

    width: int
    num_heads: int
    head_dim: int


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


def leading(x: jax.Array, rank: int) -> jax.Array:
    """x with ones put in front up to `rank` axes."""
    return jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def pairwise(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """query [..., Tq] and key [..., Tk] as [..., Tq, 1] and [..., 1, Tk] of one rank, for a value of every pair."""
    query, key = jnp.expand_dims(query, -1), jnp.expand_dims(key, -2)
    rank = max(query.ndim, key.ndim)
    return leading(query, rank), leading(key, rank)


@dataclass(frozen=True, kw_only=True)
class Encoder(Checked):
    """Base of all position encodings; on its own the identity.

    Encoders are frozen, hashable and hold Python numbers, strings and tuples only. They say nothing of the model's size: sizes
    come with `dims` and with the arrays.
    """

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Draws the learned parameters: a pytree of float32 arrays, {} when nothing is learned."""
        return {}

    def check(self, dims: Dims, length: int) -> None:
        """Raises ValueError if a model of these sizes cannot run over positions 0 .. length - 1. Called before tracing."""

    def check_positions(self, axes: int | None, real: bool) -> None:
        """Raises ValueError unless it reads positions of so many axes (None: the usual one), real or whole.

        Called before tracing.
        """

    def check_layers(self, num_layers: int) -> None:
        """Raises ValueError unless its period divides the layers of the model."""
        if num_layers % self.period:
            fitting = self.period * max(1, round(num_layers / self.period))
            raise ValueError(
                f"model.num_layers {num_layers} is not a multiple of the {self.period} layers that {type(self).__name__} "
                f"describes; use {fitting} layers, or another pattern"
            )

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> Prepared:
        """What parameters and current length settle, before any position is known; by default the parameters."""
        return params

    def tables(self, prepared: Prepared, positions: Positions) -> Tables:
        """What all layers share (cos and sin, say), computed once a forward pass; by default `prepared` itself."""
        return prepared

    def embed(self, tables: Tables, x: jax.Array, positions: Positions) -> jax.Array:
        """Door 1: adds to the token embeddings x, [..., T, width]."""
        return x

    def rotate(self, tables: Tables, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Door 2: turns q, [..., Tq, H, D], and k, [..., Tk, H, D]."""
        return q, k

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        """Door 3: what is added to the logits, float32 [..., H, Tq, Tk]; None = nothing.

        Attention calls this a block of queries at a time, with q and what positions say of queries cut to the block, and k and
        what they say of keys cut to those that the block may see: a value must not depend on how many keys there are.
        """
        return None

    @property
    def period(self) -> int:
        """After how many layers its doors repeat: 1, unless layers differ."""
        return 1

    def at_layer(self, layer: int, tables: Tables) -> tuple["Encoder", Tables]:
        """The encoder whose doors a layer (from 0) opens, and its tables: by default this one, in every layer."""
        return self, tables

    @property
    def variant_fields(self) -> frozenset[str]:
        """The options that act through `prepare` alone, so that they may change on a trained model."""
        return frozenset()

    def changed_by(self, variant: "Encoder") -> set[str]:
        """What makes `variant` more than another way to run this trained encoder: options outside `variant_fields`."""
        if type(variant) is not type(self):
            return {"the class"}
        names = (field.name for field in dataclasses.fields(self))
        return {name for name in names if getattr(variant, name) != getattr(self, name)} - self.variant_fields

    @property
    def presumed_lengths(self) -> frozenset[int]:
        """The trained lengths, in input positions, that the encoding or its parts presume."""
        return frozenset()

    @property
    def needs_length(self) -> bool:
        """Whether the encoding reads the current length, and so presumes that the answer's length is known."""
        return False


@dataclass(frozen=True, kw_only=True)
class NoPE(Encoder):
    """No position encoding: order is seen through the causal mask alone (Kazemnejad et al. 2023, arXiv:2305.19466).

    Formula: none
    Extrapolates: yes in form, there is nothing to run out of
    Knows: nothing

    Example:
      >>> rj.NoPE().bias({}, q, k, positions) is None
      True
    """


def require_scale(name: str, value: float) -> None:
    """Raises ValueError unless the standard deviation called `name` is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {value}; the usual one is 0.02, and 0.0 begins at zero")


def is_traced(*values: Any) -> bool:
    """Whether any of the values is known only while a compiled program runs."""
    return any(isinstance(value, jax.core.Tracer) for value in values)
