"""Resonance RoPE: every wavelength is a whole number of positions (Wang et al. 2024, arXiv:2403.00071)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from .base import Array, FrequencyMap

__all__ = ["Resonance"]


@dataclass(frozen=True, kw_only=True)
class Resonance(FrequencyMap):
    """Rounds every wavelength to a whole number of positions, so that a pair repeats exactly the angles of its training.

    The source is arXiv:2403.00071, section 4.1, which also applies it after another map ("Resonance YaRN").

    Formula: 2 pi / round(2 pi / theta_i), theta_i from the map `of`
    Extrapolates: a pair whose wavelength is within the trained length meets no new angle at any length; slower pairs do
    Knows: what `of` knows

    Example:
      >>> (2 * jnp.pi / rj.rotary_frequencies(4, scaling=rj.Resonance()).inv_freq).round()
      Array([  6., 628.], dtype=float32)

    Attributes:
      of: the map whose wavelengths are rounded; None rounds those of RoPE.
    """

    of: FrequencyMap | None = None

    def check(self, pairs: int) -> None:
        if self.of is not None:
            self.of.check(pairs)

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        scale: Array | float = 1.0
        if self.of is not None:
            inv_freq, scale = self.of.apply(inv_freq, base=base, length=length, xp=xp)
        wavelength = 2 * math.pi / xp.where(inv_freq > 0, inv_freq, 1.0)  # frequency 0 has no wavelength
        whole = xp.maximum(xp.round(wavelength), 1.0)  # a wavelength below a half would round to 0
        if xp is not np:  # the gradient of a learned base or angle passes the rounding, whose derivative is 0
            whole = wavelength + lax.stop_gradient(whole - wavelength)
        return xp.where(inv_freq > 0, 2 * math.pi / whole, 0.0), scale

    @property
    def needs_length(self) -> bool:
        return self.of is not None and self.of.needs_length

    @property
    def trained_length(self) -> int | None:
        return None if self.of is None else self.of.trained_length
