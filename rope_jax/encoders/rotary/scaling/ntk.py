"""NTK-aware scaling of the base (arXiv:2309.00071, section 3.1)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, ntk_powers, require_factor

__all__ = ["NTK"]


@dataclass(frozen=True, kw_only=True)
class NTK(FrequencyMap):
    """NTK-aware scaling: base * factor^(d/(d-2)): high frequencies stay, low ones stretch (arXiv:2309.00071, section 3.1).

    Formula: theta_i of base factor^(R/(R-2)): theta_i factor^(-2i/(R-2))
    Extrapolates: to about factor times the trained length, the slowest pair as trained
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
