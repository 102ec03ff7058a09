"""The frequency map of Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783; as released with the model)."""

import math
from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, require_factor, require_original_length

__all__ = ["Llama3"]


@dataclass(frozen=True, kw_only=True)
class Llama3(FrequencyMap):
    """Keeps wavelengths below original_length / high_freq_factor, divides those above original_length / low_freq_factor.

    The source is arXiv:2407.21783 and the code released with the model. Between the two bounds, the frequency is a mean of both,
    with weights linear in the number of periods within original_length.

    Formula: theta_i, w = 2 pi / theta_i, if w < L0 / high; theta_i / factor if w > L0 / low; between, a mean linear in L0 / w
    Extrapolates: to about factor times the trained length
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.Llama3(factor=4.0, original_length=64)).inv_freq
      Array([1.    , 0.0025], dtype=float32)

    Attributes:
      factor: the divisor of slow frequencies.
      original_length: the trained length, in input positions.
      low_freq_factor, high_freq_factor: the numbers of periods within original_length that bound the transition; if they are
        equal, there is no transition.
    """

    factor: float
    original_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        require_factor("Llama3", self.factor)
        require_original_length("Llama3", self.original_length)
        if not 0 < self.low_freq_factor <= self.high_freq_factor:
            raise ValueError(
                f"Llama3 needs 0 < low_freq_factor <= high_freq_factor, got low_freq_factor={self.low_freq_factor} and "
                f"high_freq_factor={self.high_freq_factor}; the usual ones are 1.0 and 4.0"
            )

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        periods = self.original_length * inv_freq / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor  # 0 in Llama 4 Scout: no transition
        kept = xp.clip((periods - self.low_freq_factor) / width, 0.0, 1.0) if width else periods > self.low_freq_factor
        return (1.0 - kept) * inv_freq / self.factor + kept * inv_freq, 1.0
