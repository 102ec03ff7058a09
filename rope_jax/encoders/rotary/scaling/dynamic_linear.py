"""Position interpolation by the current length (arXiv:2309.00071, section 3.3)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, aligned, excess, require_original_length

__all__ = ["DynamicLinear"]


@dataclass(frozen=True, kw_only=True)
class DynamicLinear(FrequencyMap):
    """Position interpolation by the current length: divides frequencies by max(length, original_length) / original_length.

    Dynamic scaling as in arXiv:2309.00071, section 3.3. It uses the whole length, which includes the answer: see
    `Positions.length`.

    Formula: theta_i / (max(L, original_length) / original_length)
    Extrapolates: to any length; positions fall between the trained ones
    Knows: the current length, and so the length of the answer

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.DynamicLinear(original_length=8), length=32).inv_freq
      Array([0.25  , 0.0025], dtype=float32)

    Attributes:
      original_length: the trained length, in input positions (2n + 2 for copy and reversal of n symbols).
    """

    original_length: int

    def __post_init__(self) -> None:
        require_original_length("DynamicLinear", self.original_length)

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        if length is None:
            return inv_freq, 1.0
        return aligned(inv_freq, length, xp) / (1.0 + excess(length, self.original_length, xp)), 1.0

    @property
    def needs_length(self) -> bool:
        return True
