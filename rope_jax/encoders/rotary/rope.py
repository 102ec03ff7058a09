"""RoPE as an encoder: the functions of `rotary`, plugged into a model (Su et al. 2021, arXiv:2104.09864)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..base import Dims, Encoder, Params, Tables
from ..positions import Positions, require_axis
from .functional import Arrangement, Frequencies, Layout, arranged, mapped, rotary_frequencies, rotary_tables, rotate
from .scaling.base import FrequencyMap

__all__ = ["RoPE"]


@dataclass(frozen=True, kw_only=True)
class RoPE(Encoder):
    """Turns queries and keys so that their score depends on content and relative position only (arXiv:2104.09864).

    Formula: pair i of q_m and k_n turned by m theta_i and n theta_i, theta_i = base^(-2i/R)
    Extrapolates: yes in form; turns of slow pairs beyond training are unseen, which frequency maps address
    Knows: nothing

    Example:
      >>> cos, sin = rj.rotary_tables(rj.RoPE().frequencies(8), jnp.arange(3))
      >>> rj.rotate(q, cos, sin).shape
      (3, 2, 8)

    Attributes:
      base: the longest wavelength is about 2 pi base.
      layout: as in `rotate`.
      rotary_fraction: the part of each head's features that is turned, int(head_dim * rotary_fraction) (0.25 in GPT-NeoX).
      head_fraction: the part of the heads that is turned, int(num_heads * head_fraction); the others see no position.
      scaling: a frequency map, such as NTK(factor=2.0).
      learn_base: the base is one learned scalar for all layers, stored as its logarithm and starting at `base`.
      learn_angles: all R/2 frequencies are learned, starting at those of `base`.
      sections, arrangement: how pairs are shared among several position axes, as in `rotary_tables`; (R/4, R/4) gives half of
        them to rows and half to columns. A token of plain text stands at the same place on every axis.
      exact: angles of the given frequencies within 1e-6 up to position 1e7, as in `rotary_tables`.
    """

    base: float = 10_000.0
    layout: Layout = "half"
    rotary_fraction: float = 1.0
    head_fraction: float = 1.0
    scaling: FrequencyMap | None = None
    learn_base: bool = False
    learn_angles: bool = False
    sections: tuple[int, ...] | None = None
    arrangement: Arrangement = "chunked"
    exact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.base < math.inf:
            raise ValueError(f"RoPE base must be positive, got {self.base}; the usual value is 10000.0")
        for name in ("rotary_fraction", "head_fraction"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"RoPE {name} must be above 0 and at most 1, got {getattr(self, name)}; 1.0 is all")
        if self.learn_base and self.learn_angles:
            raise ValueError("RoPE cannot learn both the base and the angles that come from it; choose one")
        if self.sections is None and self.arrangement != "chunked":
            raise ValueError(f"RoPE arrangement={self.arrangement!r} arranges sections, and there are none; give sections=")

    def rotary_dim(self, head_dim: int) -> int:
        """How many of head_dim features are turned; ValueError if that is odd or none."""
        rotary_dim = int(head_dim * self.rotary_fraction)
        if rotary_dim < 2 or rotary_dim % 2:
            raise ValueError(
                f"RoPE turns features in pairs, but int(head_dim {head_dim} * rotary_fraction {self.rotary_fraction}) = "
                f"{rotary_dim}; choose them so that this is even and at least 2"
            )
        return rotary_dim

    def frequencies(self, head_dim: int, *, length: int | jax.Array | None = None) -> Frequencies:
        """Those of the untrained encoder, for heads of head_dim features; `length` as in `rotary_frequencies`."""
        return rotary_frequencies(self.rotary_dim(head_dim), base=self.base, scaling=self.scaling, length=length)

    def init(self, key: jax.Array, dims: Dims) -> Params:
        if self.learn_base:
            return {"log_base": jnp.log(jnp.asarray(self.base, jnp.float32))}
        if self.learn_angles:
            return {"inv_freq": rotary_frequencies(self.rotary_dim(dims.head_dim), base=self.base).inv_freq}
        return {}

    def check(self, dims: Dims, length: int) -> None:
        pairs = self.rotary_dim(dims.head_dim) // 2
        if self.scaling is not None:
            self.scaling.check(pairs)
        if self.sections is not None:
            arranged(self.sections, self.arrangement, len(self.sections), pairs)
        self._turned_heads(dims.num_heads)

    def check_positions(self, axes: int | None, real: bool) -> None:
        if self.sections is None:
            require_axis(axes, None, f"{type(self).__name__}(sections=None)")
        elif axes is not None:
            arranged(self.sections, self.arrangement, axes, sum(self.sections))

    def _turned_heads(self, num_heads: int) -> int:
        """How many of so many heads are turned; ValueError if none is."""
        turned = int(num_heads * self.head_fraction)
        if not turned:
            raise ValueError(
                f"RoPE head_fraction {self.head_fraction} of {num_heads} heads gives no head; use at least "
                f"{math.ceil(1000 / num_heads) / 1000:.3g}"
            )
        return turned

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> Frequencies:
        if not self.needs_length:
            length = None
        if self.learn_angles:
            return mapped(params["inv_freq"], self.base, self.scaling, length)
        if self.learn_base:
            rotary_dim = self.rotary_dim(dims.head_dim)
            base = jnp.exp(params["log_base"])
            return rotary_frequencies(rotary_dim, base=base, scaling=self.scaling, length=length)
        return self.frequencies(dims.head_dim, length=length)

    def tables(self, prepared: Frequencies, positions: Positions) -> Tables:
        query = self._tables(prepared, positions.query, positions)
        return {"query": query, "key": query if positions.key is None else self._tables(prepared, positions.key, positions)}

    def _tables(self, frequencies: Frequencies, at: jax.Array, positions: Positions) -> tuple[jax.Array, jax.Array]:
        self.check_positions(positions.axes, real=False)
        if positions.axes is not None:
            positions.require_axes()
        elif self.sections is not None:
            at = jnp.broadcast_to(at, (len(self.sections), *jnp.shape(at)))
        return rotary_tables(frequencies, at, sections=self.sections, arrangement=self.arrangement, exact=self.exact)

    def rotate(self, tables: Tables, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_q, of_k = (self._turned_heads(x.shape[-2]) for x in (q, k))
        if of_q * k.shape[-2] != of_k * q.shape[-2]:
            raise ValueError(
                f"RoPE head_fraction {self.head_fraction} turns {of_q} of {q.shape[-2]} query heads, but {of_k} of "
                f"{k.shape[-2]} key heads; choose a fraction that gives whole groups"
            )
        return self._turn(q, of_q, *tables["query"]), self._turn(k, of_k, *tables["key"])

    def _turn(self, x: jax.Array, turned: int, cos: jax.Array, sin: jax.Array) -> jax.Array:
        if turned == x.shape[-2]:
            return rotate(x, cos, sin, layout=self.layout)
        return jnp.concatenate([rotate(x[..., :turned, :], cos, sin, layout=self.layout), x[..., turned:, :]], axis=-2)

    @property
    def variant_fields(self) -> frozenset[str]:
        learned = self.learn_base or self.learn_angles
        return frozenset({"scaling"} if learned else {"scaling", "base"})

    @property
    def needs_length(self) -> bool:
        return self.scaling is not None and self.scaling.needs_length

    @property
    def presumed_lengths(self) -> frozenset[int]:
        length = None if self.scaling is None else self.scaling.presumed_length
        return frozenset() if length is None else frozenset({length})
