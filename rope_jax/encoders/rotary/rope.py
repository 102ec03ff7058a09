"""RoPE as an encoder: the functions of `functional` in a model (Su et al. 2021, arXiv:2104.09864)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from ..base import Dims, Requirements, Tables
from ..positions.base import Positions
from .base import Rotary
from .frequencies import Frequencies
from .functional import Arrangement, arranged, rotary_tables

__all__ = ["RoPE"]


@dataclass(frozen=True, kw_only=True)
class RoPE(Rotary):
    """Rotates queries and keys so that their score depends on content and relative position only (arXiv:2104.09864).

    Formula: pair i of q_m and k_n is rotated by m theta_i and n theta_i, theta_i = base^(-2i/R)
    Extrapolates: yes in form; beyond the training length, slow pairs have angles never seen, which frequency maps address
    Knows: nothing

    Example:
      >>> cos, sin = rj.rotary_tables(rj.RoPE().frequencies(8), jnp.arange(3))
      >>> rj.rotate(q, cos, sin).shape
      (3, 2, 8)

    Attributes:
      sections, arrangement: which axis of positions each pair reads, as in `rotary_tables`; with (R/4, R/4), half of the pairs
        read rows and half read columns. A token of plain text has the same position on every axis.
    """

    sections: tuple[int, ...] | None = None
    arrangement: Arrangement = "chunked"

    def __post_init__(self) -> None:
        if self.sections is None and self.arrangement != "chunked":
            raise ValueError(f"RoPE arrangement={self.arrangement!r} arranges sections, but sections is None; give sections=")

    @property
    def requirements(self) -> Requirements:
        if self.sections is None:
            return super().requirements
        fewest = 1 if self.arrangement == "chunked" else len(self.sections)
        return replace(super().requirements, position_axes=(fewest, len(self.sections)))

    def _require_sizes(self, dims: Dims) -> None:
        super()._require_sizes(dims)
        if self.sections is not None:
            arranged(self.sections, self.arrangement, len(self.sections), self.rotary_dim(dims.head_dim) // 2)

    def tables(self, prepared: Frequencies, positions: Positions) -> Tables:
        """cos and sin for queries and keys, {"query": (cos, sin), "key": (cos, sin)}, as from `rotary_tables`."""
        if self.sections is None or positions.axes is None:
            positions = positions.along(None, "RoPE(sections=None)")
        else:
            positions.require_axes()

        def cos_sin(place: jax.Array) -> tuple[jax.Array, jax.Array]:
            if self.sections is not None and positions.axes is None:
                place = jnp.broadcast_to(place, (len(self.sections), *jnp.shape(place)))
            return rotary_tables(prepared, place, sections=self.sections, arrangement=self.arrangement, exact=self.exact)

        query = cos_sin(positions.query)
        return {"query": query, "key": query if positions.key is None else cos_sin(positions.key)}
