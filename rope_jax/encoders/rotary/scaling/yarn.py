"""YaRN: interpolates slow frequencies and keeps fast ones (Peng et al. 2023, arXiv:2309.00071)."""

import math
from dataclasses import dataclass
from typing import Any

from ..._internal.inputs import is_traced
from .base import Array, FrequencyMap, require_factor, require_original_length

__all__ = ["YaRN", "yarn_temperature"]


def yarn_temperature(factor: float, k: float = 1.0) -> float:
    """m(factor, k) = 0.1 k ln(factor) + 1, or 1 where factor <= 1 (arXiv:2309.00071, section 3.4; k as in DeepSeek's code).

    YaRN multiplies cos and sin, and so q and k, by m(factor, 1). DeepSeek-V3 multiplies its logits by
    m(factor, mscale_all_dim)^2.
    """
    return 1.0 if factor <= 1 else 0.1 * k * math.log(factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class YaRN(FrequencyMap):
    """Divides slow frequencies by the factor, keeps fast ones, and interpolates between (arXiv:2309.00071, section 3.2).

    A frequency is fast if it has more than beta_fast periods within original_length, slow if it has fewer than beta_slow.

    Formula: theta_i / factor ramp_i + theta_i (1 - ramp_i), ramp from 0 (fast) to 1 (slow); cos and sin times 0.1 ln(factor) + 1
    Extrapolates: to about factor times the trained length
    Knows: nothing

    Example:
      >>> rj.rotary_frequencies(4, scaling=rj.YaRN(factor=4.0, original_length=64)).attention_scale.round(4)
      Array(1.1386, dtype=float32)

    Attributes:
      factor: target length over trained length.
      original_length: the trained length, in input positions.
      attention_factor: attention_scale; None computes it from the factor and the next two options (section 3.4).
      mscale, mscale_all_dim: used only if both are set (DeepSeek): attention_scale is m(mscale) / m(mscale_all_dim), where
        m(k) = 0.1 k ln(factor) + 1. Otherwise it is m(1).
      beta_fast, beta_slow: the numbers of periods that bound the ramp.
      truncate: whether the ends of the ramp are rounded outwards to whole pairs.
    """

    factor: float
    original_length: int
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        require_factor("YaRN", self.factor)
        require_original_length("YaRN", self.original_length)
        if not 0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"YaRN needs 0 < beta_slow <= beta_fast, got beta_slow={self.beta_slow} and beta_fast={self.beta_fast}; "
                "the usual ones are 1.0 and 32.0"
            )
        if self.attention_factor is not None and self.attention_factor <= 0:
            raise ValueError(f"YaRN attention_factor must be positive, got {self.attention_factor}; None computes it")

        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"YaRN {name} must not be negative, got {value}; None leaves it out")

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        dim = 2 * inv_freq.shape[-1]
        if not is_traced(base) and not base > 1:
            raise ValueError(f"YaRN needs a base above 1, got {base}: its bounds divide by the logarithm of the base")

        def pair(periods: float) -> Array:
            """The (fractional) index of the pair with this number of periods within original_length (eq. 17)."""
            return dim * math.log(self.original_length / (2 * math.pi * periods)) / (2 * xp.log(base))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = xp.floor(low), xp.ceil(high)
        low, high = xp.maximum(low, 0.0), xp.minimum(high, dim - 1.0)  # dim - 1 and not the last pair, as in the released code
        high = xp.where(high == low, high + 0.001, high)
        pairs = xp.arange(dim // 2, dtype=inv_freq.dtype)
        slow = xp.clip((pairs - low) / (high - low), 0.0, 1.0)
        return inv_freq / self.factor * slow + inv_freq * (1.0 - slow), self._attention_scale()

    def _attention_scale(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return yarn_temperature(self.factor, self.mscale) / yarn_temperature(self.factor, self.mscale_all_dim)
        return yarn_temperature(self.factor)

    @property
    def softmax_scale(self) -> float:
        """m(mscale_all_dim)^2, the factor of DeepSeek-V3's logits, for `LogitScale`; 1 without mscale_all_dim."""
        return 1.0 if self.mscale_all_dim is None else yarn_temperature(self.factor, self.mscale_all_dim) ** 2
