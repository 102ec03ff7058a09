"""Attention temperature: logits are multiplied by a constant, or by the logarithm of the position or length."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from ._internal.arrays import fits_batch
from ._internal.inputs import numbers, whole
from .base import Dims, Encoder, Params, Requirements, Tables
from .positions.base import Positions

__all__ = ["LogN", "LogitScale", "log_n_scale"]


def log_n_scale(n: jax.Array | int, *, original_length: int) -> jax.Array:
    """max(1, ln n / ln original_length), which keeps attention over n tokens as sharp as over the trained length.

    The source is Chiang and Cholak 2022, arXiv:2202.12172; the lower bound of 1 is from Qwen (arXiv:2309.16609).

    Args:
      n: int or float [...], the number of tokens that a query sees; at least 1.
      original_length: the trained length, in input positions; at least 2.

    Returns:
      float32 [...].

    Raises:
      ValueError: original_length is below 2 (the logarithm of 1 is 0), or a concrete n is below 1 or not finite.
    """
    _require_long(original_length)
    return jnp.maximum(1.0, jnp.log(numbers("n", n, lowest=1).astype(jnp.float32)) / math.log(original_length))


def _require_long(original_length: int) -> None:
    hint = "the logarithm of 1 is 0; it is the trained length in input positions"
    whole("LogN original_length", original_length, lowest=2, hint=hint)


def _scaled(q: jax.Array, scale: jax.Array) -> jax.Array:
    """q [..., T, H, D] times scale, [..., T] or [...]."""
    if q.ndim < 3 or not jnp.issubdtype(q.dtype, jnp.floating):
        raise ValueError(f"q must be floats with the axes [..., T, H, D], got {q.dtype} {q.shape}; reshape or cast it")
    return (q.astype(jnp.float32) * scale).astype(q.dtype)


@dataclass(frozen=True, kw_only=True)
class LogitScale(Encoder):
    """Multiplies q . k by a constant.

    It does not scale biases that are functions of positions. A bias that reads q (CoPE, TransformerXL) reads the scaled q.
    In DeepSeek-V3 (arXiv:2412.19437, released code) the constant is `softmax_scale` of its YaRN.

    Formula: q times scale
    Extrapolates: encodes no position; combine it with an encoder that does
    Knows: nothing

    Example:
      >>> yarn = rj.YaRN(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
      >>> deepseek = rj.Compose(rj.RoPE(scaling=yarn), rj.LogitScale(scale=yarn.softmax_scale))

    Attributes:
      scale: the constant.
    """

    scale: float

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"LogitScale scale must be positive, got {self.scale}; 1.0 changes nothing")

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> jax.Array:
        return jnp.asarray(self.scale, jnp.float32)

    def rotate(self, tables: Tables, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _scaled(q, tables), k

    @property
    def retunable(self) -> frozenset[str]:
        return frozenset({"scale"})


@dataclass(frozen=True, kw_only=True)
class LogN(Encoder):
    """Multiplies q . k by ln n / ln(original_length), n the number of tokens that a query sees (arXiv:2202.12172).

    Formula: q times max(1, ln n / ln original_length), n the query's position + 1 or the current length
    Extrapolates: encodes no position; combine it with an encoder that does, as Compose(RoPE(), LogN(original_length=26))
    Knows: with by="length", the current length, and so the length of the answer

    Example:
      >>> rj.log_n_scale(jnp.array([1, 1024, 1024**2]), original_length=1024).tolist()
      [1.0, 1.0, 2.0]

    Attributes:
      original_length: the trained length, in input positions.
      by: n is the query's "position" + 1, as in Qwen, or the "length" of the whole example.
    """

    original_length: int
    by: Literal["position", "length"] = "position"

    def __post_init__(self) -> None:
        _require_long(self.original_length)

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> jax.Array:
        """The factor from ln n to the scale, float32 []; with by="length", the scale itself, float32 [...]."""
        if self.by == "position":
            return jnp.asarray(1 / math.log(self.original_length), jnp.float32)
        if length is None:
            return jnp.ones((), jnp.float32)
        # an example without tokens, which only fills up a batch, counts as one token
        length = jnp.maximum(numbers("length", length, lowest=0), 1)
        return log_n_scale(length, original_length=self.original_length)

    def tables(self, prepared: jax.Array, positions: Positions) -> jax.Array:
        """The scale of every query, float32 [..., T, 1, 1]."""
        if self.by == "length":
            return jnp.expand_dims(prepared, (-3, -2, -1))
        query = positions.along(None, "LogN(by='position')").query.astype(jnp.float32)
        return jnp.expand_dims(jnp.maximum(1.0, jnp.log(jnp.maximum(query, 0.0) + 1) * prepared), (-2, -1))

    def rotate(self, tables: jax.Array, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        wanted = q.shape[-3] if self.by == "position" else 1
        if tables.shape[-3] != wanted or not fits_batch(tables.shape[:-3], q.shape[:-3]):
            raise ValueError(
                f"LogN has scales of shape {tables.shape[:-2]} for the tokens {q.shape[:-2]} of q; give one position for each "
                "token and one length for each example"
            )
        return _scaled(q, jnp.reshape(tables, (1,) * (q.ndim - tables.ndim) + tables.shape)), k

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            position_axes=None if self.by == "position" else (1, None),
            length=self.by == "length",
            original_lengths=frozenset({self.original_length}),
        )

    @property
    def retunable(self) -> frozenset[str]:
        return frozenset({"original_length"})
