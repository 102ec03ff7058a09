"""Frequency maps: how RoPE's frequencies change when a text is longer than the trained length.

A map is a frozen dataclass with one method, `apply`. `apply` takes numpy float64 arrays on the host or traced jax float32 arrays,
and their module as `xp`. A dynamic map is a pure function of the current length; without a length, it takes the original one.
"""

from dataclasses import dataclass
from typing import Any

from ..._internal.typed_dataclass import TypedDataclass

__all__ = ["FrequencyMap"]

Array = Any  # numpy float64 on the host, jax float32 when traced


@dataclass(frozen=True, kw_only=True)
class FrequencyMap(TypedDataclass):
    """Base of the frequency maps. A subclass defines `apply`."""

    @property
    def needs_length(self) -> bool:
        """Whether the map reads the current length."""
        return False

    @property
    def trained_length(self) -> int | None:
        """The trained length in input positions: the option `original_length`, if there is one."""
        return getattr(self, "original_length", None)

    def check(self, pairs: int) -> None:
        """Raises ValueError if the map does not fit `pairs` frequencies. It is called before tracing."""

    def apply(self, inv_freq: Array, *, base: Array, length: Array | None, xp: Any) -> tuple[Array, Array | float]:
        """Maps the default frequencies.

        Args:
          inv_freq: [R/2], base^(-2i/R), or learned frequencies in their place; radians per position.
          base: scalar, the base of the frequencies.
          length: [..., 1] or None, the current lengths in input positions.
          xp: numpy or jax.numpy, the module of the arrays.

        Returns:
          The mapped frequencies, [..., R/2], and attention_scale, a float or [..., 1].
        """
        return inv_freq, 1.0


def require_factor(name: str, factor: float) -> None:
    """Raises ValueError unless the factor of the map called `name` is positive and finite."""
    if factor <= 0:
        raise ValueError(
            f"{name} factor must be positive, got {factor}; 2.0 stretches to twice the trained length, 1.0 changes nothing"
        )


def require_original_length(name: str, original_length: int) -> None:
    """Raises ValueError unless the original_length of the map called `name` is at least 1."""
    if original_length < 1:
        raise ValueError(
            f"{name} original_length must be at least 1, got {original_length}; it is the trained length in input positions"
        )


def ntk_powers(inv_freq: Array, factor: Array, xp: Any) -> Array:
    """factor^(-2i/(d-2)), the effect of the base * factor^(d/(d-2)) on frequency i: 1 for the first, 1/factor for the last."""
    pairs = inv_freq.shape[-1]
    exponents = xp.arange(pairs, dtype=inv_freq.dtype) / max(pairs - 1, 1)  # rotary_dim 2: the single exponent 0
    return factor ** -xp.reshape(exponents, (1,) * max(xp.ndim(factor) - 1, 0) + (-1,))


def excess(length: Array, original_length: int, xp: Any) -> Array:
    """max(L, L0) / L0 - 1, computed so that it is exactly 0 up to L0 in any precision, compiled or not."""
    return xp.maximum(length - original_length, 0.0) / original_length


def aligned(inv_freq: Array, length: Array, xp: Any) -> Array:
    """inv_freq, [R/2], reshaped to the rank of length, [..., 1], so that no rank is promoted implicitly."""
    return xp.reshape(inv_freq, (1,) * (xp.ndim(length) - 1) + (-1,))
