"""p-RoPE: only the fastest pairs rotate (Barbero et al. 2024, arXiv:2410.06205)."""

from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, require_factor

__all__ = ["Proportional"]


@dataclass(frozen=True, kw_only=True)
class Proportional(FrequencyMap):
    """Keeps the fastest int(fraction * rotary_dim // 2) frequencies and sets the others to zero (arXiv:2410.06205, section 6).

    It does not change the frequencies that it keeps. RoPE(rotary_fraction=...) instead spreads the whole range of frequencies
    over fewer features.

    Formula: theta_i / factor for i < int(fraction * R // 2), else 0
    Extrapolates: yes in form; pairs of frequency zero see no position
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.Proportional(fraction=0.5)).inv_freq
      Array([1., 0.], dtype=float32)

    Attributes:
      fraction: the share of the frequencies that is kept; 0 rotates nothing, 1 is RoPE.
      factor: the divisor of the kept frequencies.
    """

    fraction: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_factor("Proportional", self.factor)
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"Proportional fraction must be from 0 to 1, got {self.fraction}")

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        kept = int(self.fraction * 2 * inv_freq.shape[-1] // 2)
        return xp.where(xp.arange(inv_freq.shape[-1]) < kept, inv_freq, 0.0) / self.factor, 1.0
