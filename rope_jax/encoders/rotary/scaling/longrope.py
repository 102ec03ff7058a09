"""LongRoPE: a searched divisor for every frequency, with one list for short texts and one for long texts (arXiv:2402.13753)."""

import math
from dataclasses import dataclass
from typing import Any

from .base import Array, FrequencyMap, aligned, require_factor, require_original_length

__all__ = ["LongRoPE"]


@dataclass(frozen=True, kw_only=True)
class LongRoPE(FrequencyMap):
    """Divides frequency i by long_factor[i] where the length is above original_length, else by short_factor[i].

    The source is Ding et al. 2024, arXiv:2402.13753, section 3.2. It uses the whole length, which includes the answer: see
    `Positions.length`.

    Formula: theta_i / long_factor_i if L > original_length, else theta_i / short_factor_i
    Extrapolates: to the length for which the lists were searched
    Knows: whether the current length is above original_length, and so something of the length of the answer

    Example:
      >>> longrope = rj.LongRoPE(short_factor=(1.0, 1.0), long_factor=(1.0, 4.0), original_length=8, factor=4.0)
      >>> rj.rotary_frequencies(4, scaling=longrope, length=9).inv_freq
      Array([1.    , 0.0025], dtype=float32)

    Attributes:
      short_factor, long_factor: positive numbers, one for each pair of the rotary dim.
      original_length: the trained length, in input positions.
      factor: target length over trained length; it sets attention_scale to sqrt(1 + ln(factor) / ln(original_length)).
      attention_factor: replaces that attention_scale, unless None.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        require_factor("LongRoPE", self.factor)
        require_original_length("LongRoPE", self.original_length)
        for name in ("short_factor", "long_factor"):
            for value in getattr(self, name):
                if value <= 0:
                    raise ValueError(f"LongRoPE {name} must hold positive numbers, got {value}")
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(f"LongRoPE attention_factor must be positive, got {self.attention_factor}; None computes it")
        if self.attention_factor is None and self.factor > 1 and self.original_length == 1:
            raise ValueError("LongRoPE original_length of 1 gives no attention_scale (ln 1 = 0); give attention_factor")

    def check(self, pairs: int) -> None:
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != pairs:
                raise ValueError(
                    f"LongRoPE {name} has {len(getattr(self, name))} numbers, but rotary_dim {2 * pairs} has {pairs} pairs; "
                    "give one for each"
                )

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        short, long = (xp.asarray(factors, inv_freq.dtype) for factors in (self.short_factor, self.long_factor))
        scale = self.attention_factor
        if scale is None:
            scale = 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        if length is None:
            return inv_freq / short, scale
        divisor = xp.where(length > self.original_length, aligned(long, length, xp), aligned(short, length, xp))
        return aligned(inv_freq, length, xp) / divisor, scale

    @property
    def needs_length(self) -> bool:
        return True
