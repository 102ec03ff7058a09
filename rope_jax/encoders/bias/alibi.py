"""ALiBi, a penalty on distance (Press et al. 2022, arXiv:2108.12409), and hard-ALiBi, windows of heads (arXiv:2402.01032)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from .._internal.inputs import whole
from ..base import Dims, Params, Requirements
from ..positions.base import Positions
from .base import Bias, distances, offsets, per_head

__all__ = ["ALiBi", "HardALiBi", "alibi_bias", "alibi_slopes"]


def alibi_slopes(num_heads: int) -> jax.Array:
    """2^(-8(h+1)/n) for a power of two n (arXiv:2108.12409, section 3).

    Args:
      num_heads: n. If it is not a power of two, the slopes are those of the next lower power p, followed by the 1st, 3rd,
        5th, ... slope of 2p, as in the released code.

    Returns:
      float32 [num_heads].

    Raises:
      ValueError: num_heads < 1.
    """
    num_heads = whole("ALiBi num_heads", num_heads, lowest=1, hint="give the number of attention heads")
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8.0 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return jnp.asarray(np.concatenate([slopes, between])[:num_heads], jnp.float32)


def alibi_bias(q_positions: jax.Array, k_positions: jax.Array, num_heads: int) -> jax.Array:
    """-slope * |q - k| for every head (arXiv:2108.12409, section 3).

    Args:
      q_positions: [..., Tq], any integer or float dtype.
      k_positions: [..., Tk].
      num_heads: H, the number of slopes.

    Returns:
      float32 [..., H, Tq, Tk].
    """
    return _penalty(Positions(query=q_positions, key=k_positions).along(None, "alibi_bias"), alibi_slopes(num_heads))


def _penalty(positions: Positions, slopes: jax.Array) -> jax.Array:
    distance = distances(positions)
    return -per_head(slopes, distance) * distance


@dataclass(frozen=True, kw_only=True)
class ALiBi(Bias):
    """Adds -slope * distance to the logits, with a fixed slope for each head (arXiv:2108.12409, section 3).

    Formula: bias[h, q, k] = -slope_scale slope_h |q - k|, slope_h = 2^(-8 (h + 1) / H) for H a power of two
    Extrapolates: yes, every distance has a penalty
    Knows: nothing

    Example:
      >>> rj.alibi_bias(jnp.array([2]), jnp.arange(3), num_heads=2)[0]
      Array([[-0.125 , -0.0625, -0.    ]], dtype=float32)

    Attributes:
      slope_scale: multiplies all slopes.
    """

    slope_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.slope_scale < 0:
            raise ValueError(f"ALiBi slope_scale must not be negative, got {self.slope_scale}; the paper has 1.0")

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> jax.Array:
        return self.slope_scale * alibi_slopes(dims.num_heads)

    def bias(self, tables: jax.Array, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        return _penalty(positions, tables)

    @property
    def retunable(self) -> frozenset[str]:
        return frozenset({"slope_scale"})


@dataclass(frozen=True, kw_only=True)
class HardALiBi(Bias):
    """Limits some heads to a window and adds nothing in the others (Jelassi et al. 2024, arXiv:2402.01032, section 3.1).

    Formula: bias[h, q, k] = 0 if h >= masked_heads or 0 <= q - k <= h, else -8e37 (no weight)
    Extrapolates: yes, a window has the same width at every length; the other heads see no position
    Knows: nothing

    Example:
      >>> encoder = rj.HardALiBi(masked_heads=1)  # head 0 of two heads sees only the query's position
      >>> (encoder.bias(encoder.prepare({}, None, dims), q, k, positions)[0] == 0).tolist()
      [[True, False, False], [False, True, False], [False, False, True]]

    Attributes:
      masked_heads: the number of heads with a window: head h sees the last h + 1 positions, including that of the query.
    """

    masked_heads: int

    def __post_init__(self) -> None:
        if self.masked_heads < 0:
            raise ValueError(
                f"HardALiBi masked_heads must not be negative, got {self.masked_heads}; it is the number of heads with a window"
            )

    @property
    def requirements(self) -> Requirements:
        return replace(super().requirements, sizes=(self._require_heads,))

    def _require_heads(self, dims: Dims) -> None:
        if self.masked_heads > dims.num_heads:
            raise ValueError(
                f"HardALiBi masked_heads={self.masked_heads} is above the {dims.num_heads} heads of the model; use at most "
                f"{dims.num_heads}"
            )

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> jax.Array:
        """The widths of the windows, float32 [H]."""
        heads = np.arange(dims.num_heads, dtype=np.float32)
        return jnp.asarray(np.where(heads < self.masked_heads, heads, np.inf))

    def bias(self, tables: jax.Array, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        back = -jnp.expand_dims(offsets(positions), -3)
        width = per_head(tables, back)
        # far below every logit, and finite, so that the sum of two such biases is finite too
        return jnp.where(((back >= 0) & (back <= width)) | jnp.isinf(width), 0.0, jnp.finfo(jnp.float32).min / 4)

    @property
    def retunable(self) -> frozenset[str]:
        return frozenset({"masked_heads"})
