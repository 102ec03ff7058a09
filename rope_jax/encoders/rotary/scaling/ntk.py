"""NTK-aware scaling of the base (arXiv:2309.00071, section 3.1)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, ntk_powers, require_factor

__all__ = ["NTK"]


@dataclass(frozen=True, kw_only=True)
class NTK(FrequencyMap):
    """NTK-aware scaling: multiplies the base by factor^(d/(d-2)), d the rotary dim (arXiv:2309.00071, section 3.1).

    The fastest frequency stays, the slowest is divided by the factor.

    Formula: theta_i of base factor^(R/(R-2)): theta_i factor^(-2i/(R-2))
    Extrapolates: to about factor times the trained length; the slowest pair keeps its trained range of angles
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.NTK(factor=4.0)).inv_freq
      Array([1.    , 0.0025], dtype=float32)

    Attributes:
      factor: target length over trained length.
    """

    factor: float

    def __post_init__(self) -> None:
        require_factor("NTK", self.factor)

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        return inv_freq * ntk_powers(inv_freq, xp.asarray(self.factor, inv_freq.dtype), xp), 1.0
