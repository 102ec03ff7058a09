"""Sinusoidal encoding, which is added to the input (Vaswani et al. 2017, arXiv:1706.03762, section 3.5)."""

from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from .._internal.inputs import real, scalar, tokens, whole
from ..base import Dims, Encoder, Requirements, Tables
from ..positions.base import Positions

__all__ = ["Sinusoidal", "sinusoidal", "sinusoidal_shift"]

Order = Literal["interleaved", "concatenated"]
Spacing = Literal["vaswani", "tensor2tensor"]


def inverse_wavelengths(dim: int, base: float, spacing: Spacing) -> np.ndarray:
    """float64 [ceil(dim / 2)]: the angular frequency of each sine, computed on the host."""
    dim = whole("sinusoidal dim", dim, lowest=1)
    base = real("sinusoidal base", base, hint="the usual value is 10000.0")
    if spacing not in get_args(Spacing):
        raise ValueError(f"spacing must be 'vaswani' or 'tensor2tensor', got {spacing!r}")
    pairs = np.arange((dim + 1) // 2, dtype=np.float64)
    with np.errstate(over="ignore"):
        inverse = base ** (-2.0 * pairs / dim) if spacing == "vaswani" else base ** (-pairs / max(dim // 2 - 1, 1))
        if not np.isfinite(inverse[-1:].astype(np.float32)).all():
            raise ValueError(f"sinusoidal base {base} gives frequencies that float32 does not hold; the usual value is 10000.0")
    return inverse


def sinusoidal(
    positions: jax.Array,
    dim: int,
    *,
    base: float = 10_000.0,
    order: Order = "interleaved",
    spacing: Spacing = "vaswani",
) -> jax.Array:
    """PE(p, 2i) = sin(p / base^(2i/dim)), PE(p, 2i+1) = cos(p / base^(2i/dim)) (arXiv:1706.03762, section 3.5).

    Args:
      positions: [..., T], any integer or float dtype.
      dim: features; with an odd dim there is one sine more than cosines.
      base: sets the frequencies; the longest wavelength is about 2 pi base positions.
      order: "interleaved" (sin, cos, sin, ...), as the paper; "concatenated" (all sines, then all cosines), as tensor2tensor.
      spacing: "vaswani" base^(-2i/dim), as the paper; "tensor2tensor" base^(-i/max(dim//2 - 1, 1)), as that library.

    Returns:
      float32 [..., T, dim].

    Raises:
      ValueError: dim is below 1, base is not positive, the order or spacing is unknown, or concrete positions are no finite
        numbers within the range of int32.
    """
    inverse = jnp.asarray(inverse_wavelengths(dim, base, spacing), jnp.float32)
    places = tokens("positions", positions).astype(jnp.float32)
    angles = jnp.expand_dims(places, -1) * jnp.reshape(inverse, (1,) * places.ndim + (-1,))
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    if order == "concatenated":
        return jnp.concatenate([sin, cos[..., : dim // 2]], axis=-1)
    if order == "interleaved":
        return jnp.stack([sin, cos], axis=-1).reshape(*angles.shape[:-1], 2 * angles.shape[-1])[..., :dim]
    raise ValueError(f"order must be 'interleaved' or 'concatenated', got {order!r}")


def sinusoidal_shift(offset: float, dim: int, *, base: float = 10_000.0) -> jax.Array:
    """The matrix that shifts an interleaved encoding by `offset`: PE(p + offset) = shift @ PE(p) (arXiv:1706.03762, section 3.5).

    Args:
      offset: the shift in positions, one number of any sign; may be traced.
      dim: features; even, because each pair needs its sine and its cosine.
      base: as in `sinusoidal`.

    Returns:
      float32 [dim, dim], block diagonal with blocks [[cos b, sin b], [-sin b, cos b]], b = offset / base^(2i/dim).

    Raises:
      ValueError: dim is odd or below 1, or base is not positive.
    """
    if whole("sinusoidal_shift dim", dim, lowest=2) % 2:
        raise ValueError(
            f"sinusoidal_shift needs an even dim, got {dim}: the last sine of an odd dim has no cosine; add or drop a feature"
        )
    angles = scalar("sinusoidal_shift offset", offset) * jnp.asarray(inverse_wavelengths(dim, base, "vaswani"), jnp.float32)
    sines, cosines = 2 * np.arange(dim // 2), 2 * np.arange(dim // 2) + 1
    shift = jnp.zeros((dim, dim), jnp.float32)
    shift = shift.at[sines, sines].set(jnp.cos(angles)).at[sines, cosines].set(jnp.sin(angles))
    return shift.at[cosines, cosines].set(jnp.cos(angles)).at[cosines, sines].set(-jnp.sin(angles))


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Encoder):
    """Adds fixed sines and cosines of the position to the embeddings (arXiv:1706.03762, section 3.5).

    Formula: x + PE(p), PE(p, 2i) = sin(p / base^(2i/width)), PE(p, 2i+1) = cos(p / base^(2i/width))
    Extrapolates: yes in form; sums of features and angles beyond training are new to the model
    Knows: nothing

    Example:
      >>> rj.sinusoidal(jnp.array([1]), 4).round(4)
      Array([[0.8415, 0.5403, 0.01  , 1.    ]], dtype=float32)

    Attributes:
      base, order, spacing: as in `sinusoidal`.
    """

    base: float = 10_000.0
    order: Order = "interleaved"
    spacing: Spacing = "vaswani"

    def __post_init__(self) -> None:
        inverse_wavelengths(1, self.base, self.spacing)

    @property
    def requirements(self) -> Requirements:
        return Requirements(position_axes=None, sizes=(self._require_frequencies,))

    def _require_frequencies(self, dims: Dims) -> None:
        inverse_wavelengths(min(dims.width, 2**20), self.base, self.spacing)  # wider models are not worth the memory here

    def embed(self, tables: Tables, x: jax.Array, positions: Positions) -> jax.Array:
        positions = positions.along(None, "Sinusoidal")
        positions.require_embeddings(x)
        added = sinusoidal(positions.query, x.shape[-1], base=self.base, order=self.order, spacing=self.spacing)
        return x + jnp.broadcast_to(added, x.shape).astype(x.dtype)
