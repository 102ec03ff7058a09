"""RoPE's frequencies: base^(-2i/R), then a frequency map (Su et al. 2021, arXiv:2104.09864, section 3.2.2)."""

from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from .._internal.inputs import is_traced, numbers, real, scalar, whole
from .scaling.base import FrequencyMap

__all__ = ["Frequencies", "rotary_frequencies"]


class Frequencies(NamedTuple):
    """RoPE's angular frequencies, a pytree.

    Attributes:
      inv_freq: float32 [..., R/2], radians per position.
      attention_scale: float32 [...], multiplies cos and sin.
      inv_freq_low: float32 [..., R/2]. Where base, scaling and length are concrete, inv_freq + inv_freq_low is the float64 value;
        where one is traced, inv_freq_low is 0.
    """

    inv_freq: jax.Array
    attention_scale: jax.Array
    inv_freq_low: jax.Array


jax.export.register_namedtuple_serialization(Frequencies, serialized_name=f"{Frequencies.__module__}.Frequencies")


def rotary_frequencies(
    rotary_dim: int,
    *,
    base: float | jax.Array = 10_000.0,
    scaling: FrequencyMap | None = None,
    length: int | jax.Array | None = None,
) -> Frequencies:
    """theta_i = base^(-2i/rotary_dim), i = 0 .. rotary_dim/2 - 1 (arXiv:2104.09864, section 3.2.2), then the frequency map.

    Args:
      rotary_dim: R, how many features of a head are rotated; even.
      base: may be traced (a learned base).
      scaling: a frequency map, or None.
      length: int [...], the current number of input positions; may be traced. Only some maps read it; with those, an array of
        lengths gives an array of frequencies. None means the original length.

    Returns:
      Frequencies, computed on the host in float64 where base and length are concrete.

    Raises:
      ValueError: rotary_dim is odd or below 2, base is not positive, or length is negative. Traced values are not checked.
    """
    require_rotary_dim(rotary_dim)
    if scaling is not None and not isinstance(scaling, FrequencyMap):
        raise ValueError(f"scaling must be a frequency map, such as NTK(factor=2.0), or None, got {scaling!r}")
    if is_traced(base):
        base = scalar("RoPE base", base)
        exponents = -2.0 * np.arange(rotary_dim // 2, dtype=np.float64) / rotary_dim
        return mapped(jnp.exp(jnp.log(base) * jnp.asarray(exponents, jnp.float32)), base, scaling, length)
    base = real("RoPE base", base, hint="the usual value is 10000.0")
    return mapped(default_frequencies(rotary_dim, base), base, scaling, length)


def mapped(inv_freq: Any, base: Any, scaling: FrequencyMap | None, length: Any) -> Frequencies:
    """Applies the map: in float64 on the host if inv_freq is a numpy array and the length is concrete, else in float32."""
    length = None if length is None else numbers("length, in input positions,", length, lowest=0)
    if isinstance(inv_freq, np.ndarray) and not is_traced(length):
        high, low, scale = map(jnp.asarray, mapped_on_host(inv_freq, base, scaling, length))
    else:
        length = None if length is None else jnp.expand_dims(length.astype(jnp.float32), -1)
        inv_freq, attention_scale = _apply(scaling, jnp.asarray(inv_freq, jnp.float32), base, length, jnp)
        high, scale = jnp.asarray(inv_freq, jnp.float32), jnp.asarray(attention_scale, jnp.float32)
        low = jnp.zeros_like(high)
    return Frequencies(high, jnp.broadcast_to(scale[..., 0] if scale.ndim else scale, high.shape[:-1]), low)


def mapped_on_host(
    inv_freq: np.ndarray, base: float, scaling: FrequencyMap | None, length: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `mapped` computes from numpy arrays, without JAX.

    Returns:
      inv_freq and inv_freq_low, float32 [..., R/2], and attention_scale, float32 [] or [..., 1].

    Raises:
      ValueError: float32 does not hold the frequencies or the attention_scale.
    """
    length = None if length is None else np.expand_dims(np.asarray(length, np.float64), -1)
    with np.errstate(all="ignore"):  # what is not finite is refused below
        mapped, attention_scale = _apply(scaling, np.asarray(inv_freq, np.float64), base, length, np)
        high, scale = np.asarray(mapped, np.float32), np.asarray(attention_scale, np.float32)
        low = np.asarray(mapped - high, np.float32)
    if not (np.isfinite(high).all() and np.isfinite(scale).all()):
        raise ValueError(
            f"RoPE base={base} with scaling={scaling!r} gives frequencies or an attention_scale that float32 does not hold; use "
            "a base and factors nearer to the usual ones"
        )
    return high, low, scale


def _apply(scaling: FrequencyMap | None, inv_freq: Any, base: Any, length: Any, xp: Any) -> tuple[Any, Any]:
    if scaling is None:
        return inv_freq, 1.0
    scaling.check(inv_freq.shape[-1])
    return scaling.apply(inv_freq, base=base, length=length, xp=xp)


def default_frequencies(rotary_dim: int, base: float) -> np.ndarray:
    """float64 [R/2]: base^(-2i/R), computed on the host."""
    return base ** (-2.0 * np.arange(rotary_dim // 2, dtype=np.float64) / rotary_dim)


def require_rotary_dim(rotary_dim: int) -> int:
    """The rotary dim; ValueError unless it is an even int and at least 2."""
    if whole("rotary_dim", rotary_dim) < 2 or rotary_dim % 2:
        raise ValueError(
            f"rotary_dim must be even and at least 2, got {rotary_dim}: features are rotated in pairs; choose another width"
        )
    return rotary_dim
