"""What a position encoding is to a model: parameters, tables, and three doors.

An encoding acts in one of three places. It adds to the input (`embed`), turns queries and keys (`rotate`) or adds to the
attention logits (`bias`). A model opens all three doors, always; a door that an encoder does not define is the identity.

What flows, once a forward pass::

    params --prepare(length)--> prepared --tables(positions)--> tables --> embed, rotate, bias (every layer)

`prepare` settles what depends on the parameters and the current length alone (RoPE: its frequencies). Two encoders that
differ in nothing else share one compiled program, which is how one trained model is evaluated under many scaling rules.

Shape legend: B batch, T time, H heads, D head dim, R rotary dim.
"""

from dataclasses import dataclass
from typing import Any

import jax

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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where the tokens stand: explicit arrays, never an arange inside an encoder.

    Attributes:
      query: int or float [..., Tq], the positions of the queries.
      key: [..., Tk], those of the keys; None means the same as the queries (self-attention without a cache).
      length: int [...], each example's own unpadded number of input positions, the same from prefill to the last decoded
        token; None where it is not known, which dynamic frequency maps read as "the original length".
    """

    query: jax.Array
    key: jax.Array | None = None
    length: jax.Array | int | None = None

    @property
    def keys(self) -> jax.Array:
        """The key positions, [..., Tk]."""
        return self.query if self.key is None else self.key


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
        """Raises ValueError if a model of these sizes cannot run over `length` input positions. Called before tracing."""

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

        Attention calls this a block of queries at a time, with q and positions.query cut to the block.
        """
        return None

    @property
    def variant_fields(self) -> frozenset[str]:
        """The options that act through `prepare` alone, so that they may change on a trained model."""
        return frozenset()

    @property
    def original_length(self) -> int | None:
        """The trained length, in input positions, that the encoding presumes; None if it presumes none."""
        return None

    @property
    def needs_length(self) -> bool:
        """Whether the encoding reads the current length, and so presumes that the answer's length is known."""
        return False


@dataclass(frozen=True, kw_only=True)
class NoPE(Encoder):
    """No position encoding: order is seen through the causal mask alone (Kazemnejad et al. 2023, arXiv:2305.19466)."""


def is_traced(*values: Any) -> bool:
    """Whether any of the values is known only while a compiled program runs."""
    return any(isinstance(value, jax.core.Tracer) for value in values)
