"""NTK-aware scaling by the current length (arXiv:2309.00071, section 3.3)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, aligned, excess, ntk_powers, require_factor, require_original_length

__all__ = ["DynamicNTK"]


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(FrequencyMap):
    """NTK-aware scaling by the current length: base * (factor L'/L0 - (factor - 1))^(d/(d-2)), L' = max(L, L0).

    The source is arXiv:2309.00071, section 3.3. Up to and including original_length, frequencies are exactly the default ones.
    It uses the whole length, which includes the answer: see `Positions.length`.

    Formula: theta_i of base (factor L'/L0 - (factor - 1))^(R/(R-2)), L' = max(L, L0)
    Extrapolates: to any length; the slowest pair keeps its trained range of angles
    Knows: the current length, and so the length of the answer

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.DynamicNTK(original_length=8), length=32).inv_freq
      Array([1.    , 0.0025], dtype=float32)

    Attributes:
      factor: with 1.0, the scale is L'/L0.
      original_length: L0, the trained length, in input positions (2n + 2 for copy and reversal of n symbols).
    """

    factor: float = 1.0
    original_length: int

    def __post_init__(self) -> None:
        require_factor("DynamicNTK", self.factor)
        require_original_length("DynamicNTK", self.original_length)

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        if length is None:
            return inv_freq, 1.0
        scale = 1.0 + self.factor * excess(length, self.original_length, xp)
        return aligned(inv_freq, length, xp) * ntk_powers(inv_freq, scale, xp), 1.0

    @property
    def needs_length(self) -> bool:
        return True
