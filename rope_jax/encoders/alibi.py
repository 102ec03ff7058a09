"""ALiBi: a penalty on distance, added to the logits (Press et al. 2022, arXiv:2108.12409)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.encoders.base import Dims, Encoder, Params, Positions

__all__ = ["ALiBi", "alibi_bias", "alibi_slopes"]


def alibi_slopes(num_heads: int) -> jax.Array:
    """2^(-8(h+1)/n) for a power of two n (arXiv:2108.12409, section 3).

    Args:
      num_heads: n; if it is not a power of two, the slopes are those of the next lower power p, followed by the 1st, 3rd,
        5th, ... of 2p, as in the released code.

    Returns:
      float32 [num_heads].

    Raises:
      ValueError: num_heads < 1.
    """
    if num_heads < 1:
        raise ValueError(f"ALiBi needs at least 1 head, got {num_heads}")
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8.0 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return jnp.asarray(np.concatenate([slopes, between])[:num_heads], jnp.float32)


def alibi_bias(q_positions: jax.Array, k_positions: jax.Array, num_heads: int) -> jax.Array:
    """-slope * |q - k| for every head (arXiv:2108.12409, section 3).

    Args:
      q_positions: [..., Tq], any integer or float dtype.
      k_positions: [..., Tk].
      num_heads: how many slopes.

    Returns:
      float32 [..., num_heads, Tq, Tk].
    """
    return _penalty(q_positions, k_positions, alibi_slopes(num_heads))


def _penalty(q_positions: jax.Array, k_positions: jax.Array, slopes: jax.Array) -> jax.Array:
    distance = jnp.abs(jnp.expand_dims(q_positions, -1) - jnp.expand_dims(k_positions, -2)).astype(jnp.float32)
    return -jnp.reshape(slopes, (1,) * (distance.ndim - 2) + (-1, 1, 1)) * jnp.expand_dims(distance, -3)


@dataclass(frozen=True, kw_only=True)
class ALiBi(Encoder):
    """Adds -slope * distance to the logits, with a fixed slope a head (arXiv:2108.12409).

    Attributes:
      slope_scale: multiplies all slopes.
    """

    slope_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.slope_scale < math.inf:
            raise ValueError(f"ALiBi slope_scale must be finite and not negative, got {self.slope_scale}; 1.0 is the paper's")

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> jax.Array:
        return self.slope_scale * alibi_slopes(dims.num_heads)

    def bias(self, tables: jax.Array, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        return _penalty(positions.query, positions.keys, tables)

    @property
    def variant_fields(self) -> frozenset[str]:
        return frozenset({"slope_scale"})
