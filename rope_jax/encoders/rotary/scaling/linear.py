"""Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, require_factor

__all__ = ["Linear"]


@dataclass(frozen=True, kw_only=True)
class Linear(FrequencyMap):
    """Position interpolation: divides every frequency by the factor (Chen et al. 2023, arXiv:2306.15595, eq. 4).

    Formula: theta_i / factor
    Extrapolates: to factor times the trained length; positions fall between the trained ones
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.Linear(factor=4.0)).inv_freq
      Array([0.25  , 0.0025], dtype=float32)

    Attributes:
      factor: target length over trained length.
    """

    factor: float

    def __post_init__(self) -> None:
        require_factor("Linear", self.factor)

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        return inv_freq / self.factor, 1.0
