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
from dataclasses import dataclass
from typing import Any

import jax

from ._internal.typed_dataclass import Checked
from .positions import Positions

__all__ = ["Dims", "Encoder", "NoPE"]

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
