"""What encoders that rotate queries and keys have in common: their options, their frequencies, and which heads are rotated."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..base import Dims, Encoder, Params, Requirements, Tables
from ..positions.base import Positions
from .frequencies import Frequencies, default_frequencies, mapped, mapped_on_host, rotary_frequencies
from .functional import Layout, rotate
from .scaling.base import FrequencyMap

__all__ = ["Rotary"]

_LARGEST_CHECKED = 2**16  # features of a head whose frequencies are computed to check the options; more take memory


@dataclass(frozen=True, kw_only=True)
class Rotary(Encoder, ABC):
    """Base of encoders that rotate pairs of features of queries and keys. A subclass defines `tables`.

    Attributes:
      base: sets the frequencies; the longest wavelength is about 2 pi base positions.
      layout: as in `rotate`.
      rotary_fraction: the share of each head's features that is rotated, int(head_dim * rotary_fraction) (0.25 in GPT-NeoX).
      head_fraction: the share of the heads that is rotated, int(num_heads * head_fraction); the others see no position.
      scaling: a frequency map, such as NTK(factor=2.0).
      learn_base: the base is one learned scalar for all layers, stored as its logarithm; its initial value is `base`.
      learn_angles: all R/2 frequencies are learned; their initial values are those of `base`.
      exact: angles have an error of at most 1e-6 up to position 1e7, as in `rotary_tables`.
    """

    base: float = 10_000.0
    layout: Layout = "half"
    rotary_fraction: float = 1.0
    head_fraction: float = 1.0
    scaling: FrequencyMap | None = None
    learn_base: bool = False
    learn_angles: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.base <= 0:
            raise ValueError(f"{name} base must be positive, got {self.base}; the usual value is 10000.0")
        for option in ("rotary_fraction", "head_fraction"):
            if not 0 < getattr(self, option) <= 1:
                raise ValueError(f"{name} {option} must be above 0 and at most 1, got {getattr(self, option)}; 1.0 is all")
        if self.learn_base and self.learn_angles:
            raise ValueError(f"{name} cannot learn both the base and the angles that are computed from it; choose one")

    @abstractmethod
    def tables(self, prepared: Frequencies, positions: Positions) -> Tables:
        """cos and sin for queries and keys, {"query": (cos, sin), "key": (cos, sin)}, as from `rotary_tables`."""

    def rotary_dim(self, head_dim: int) -> int:
        """How many of head_dim features are rotated; ValueError if that number is odd or 0."""
        rotary_dim = int(head_dim * self.rotary_fraction)
        if rotary_dim < 2 or rotary_dim % 2:
            raise ValueError(
                f"{type(self).__name__} rotates features in pairs, but int(head_dim {head_dim} * rotary_fraction "
                f"{self.rotary_fraction}) = {rotary_dim}; choose them so that this is even and at least 2"
            )
        return rotary_dim

    def frequencies(self, head_dim: int, *, length: int | jax.Array | None = None) -> Frequencies:
        """The frequencies of the untrained encoder for heads of head_dim features.

        This is `prepare` without parameters: a subclass that overrides `prepare` changes both.

        Args:
          head_dim: D, the features of one head.
          length: int [...], as in `rotary_frequencies`.
        """
        return self.prepare({}, length, Dims(width=head_dim, num_heads=1, head_dim=head_dim))

    def init(self, key: jax.Array, dims: Dims) -> Params:
        if self.learn_base:
            return {"log_base": jnp.log(jnp.asarray(self.base, jnp.float32))}
        if self.learn_angles:
            return {"inv_freq": rotary_frequencies(self.rotary_dim(dims.head_dim), base=self.base).inv_freq}
        return {}

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> Frequencies:
        """The frequencies for a length. This is the one place that decides them; params may be {}, as before training."""
        if not self.requirements.length:
            length = None
        if "inv_freq" in params:
            return mapped(params["inv_freq"], self.base, self.scaling, length)
        base = jnp.exp(params["log_base"]) if "log_base" in params else self.base
        return rotary_frequencies(self.rotary_dim(dims.head_dim), base=base, scaling=self.scaling, length=length)

    def rotate(self, tables: Tables, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        q_heads, k_heads = (self._rotated_heads(x.shape[-2]) for x in (q, k))
        if q_heads * k.shape[-2] != k_heads * q.shape[-2]:
            raise ValueError(
                f"{type(self).__name__} head_fraction {self.head_fraction} rotates {q_heads} of {q.shape[-2]} query heads, but "
                f"{k_heads} of {k.shape[-2]} key heads; choose a fraction that gives whole groups"
            )
        return self._rotate_heads(q, q_heads, *tables["query"]), self._rotate_heads(k, k_heads, *tables["key"])

    def _rotate_heads(self, x: jax.Array, num_heads: int, cos: jax.Array, sin: jax.Array) -> jax.Array:
        if num_heads == x.shape[-2]:
            return rotate(x, cos, sin, layout=self.layout)
        return jnp.concatenate([rotate(x[..., :num_heads, :], cos, sin, layout=self.layout), x[..., num_heads:, :]], axis=-2)

    def _rotated_heads(self, num_heads: int) -> int:
        """How many of num_heads heads are rotated; ValueError if none is."""
        rotated = int(num_heads * self.head_fraction)
        if not rotated:
            raise ValueError(
                f"{type(self).__name__} head_fraction {self.head_fraction} of {num_heads} heads gives no head; use at least "
                f"{math.ceil(1000 / num_heads) / 1000:.3g}"
            )
        return rotated

    @property
    def requirements(self) -> Requirements:
        trained_length = None if self.scaling is None else self.scaling.trained_length
        return Requirements(
            position_axes=None,
            length=self.scaling is not None and self.scaling.needs_length,
            original_lengths=frozenset() if trained_length is None else frozenset({trained_length}),
            sizes=(self._require_sizes,),
        )

    def _require_sizes(self, dims: Dims) -> None:
        rotary_dim = self.rotary_dim(dims.head_dim)
        if rotary_dim <= _LARGEST_CHECKED or self.scaling is not None:
            mapped_on_host(default_frequencies(rotary_dim, self.base), self.base, self.scaling, None)
        self._rotated_heads(dims.num_heads)

    @property
    def retunable(self) -> frozenset[str]:
        return frozenset({"scaling"} if self.learn_base or self.learn_angles else {"scaling", "base"})
