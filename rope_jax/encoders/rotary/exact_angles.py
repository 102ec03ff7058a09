"""Angles at distant positions without 64-bit floats: frequencies as 64-bit fixed-point turns, reduced by integer overflow.

A float32 product position * inv_freq keeps 24 bits of the whole angle, so that at position 1e7 nothing is left of the part
within one turn. Here a frequency becomes a fraction of a turn in four 16-bit limbs; multiplying by an integer position and
letting whole turns overflow is exact, and one rounding to float32 remains at the end.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_LIMBS = 4
_LIMB = 1 << 16


def _pieces(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """float32 x as the exact sum of two floats of 12 significant bits; masking bits is safe from algebraic simplification."""
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000), jnp.float32)
    return high, x - high


def _inverse_two_pi() -> list[float]:
    """1 / (2 pi) as the sum of five floats of 12 significant bits."""
    pieces, rest = [], 1 / (2 * np.pi)
    for _ in range(5):
        scale = 2.0 ** (12 - np.frexp(rest)[1])
        pieces.append(float(np.trunc(rest * scale) / scale))
        rest -= pieces[-1]
    return pieces


def fixed_point_turns(inv_freq: jax.Array, inv_freq_low: jax.Array) -> list[jax.Array]:
    """(inv_freq + inv_freq_low) / (2 pi), modulo one turn, as four uint32 arrays of 16 bits each, the most significant first."""
    sums = [jnp.zeros_like(inv_freq, jnp.int32) for _ in range(_LIMBS)]
    for part in (*_pieces(inv_freq), *_pieces(inv_freq_low)):
        for constant in _inverse_two_pi():
            product = part * constant  # 12 bits by 12 bits: exact
            sign = jnp.where(product < 0, -1, 1)
            rest = jnp.abs(product) - jnp.floor(jnp.abs(product))
            for limb in range(_LIMBS):
                rest = rest * _LIMB
                digit = jnp.floor(rest)
                rest = rest - digit
                sums[limb] = sums[limb] + sign * digit.astype(jnp.int32)
    limbs, carry = [], jnp.zeros_like(inv_freq, jnp.int32)
    for total in reversed(sums):
        total = total + carry
        limbs.append((total & (_LIMB - 1)).astype(jnp.uint32))
        carry = total >> 16
    return limbs[::-1]


def turned_angle(positions: jax.Array, turns: list[jax.Array], inv_freq: jax.Array) -> jax.Array:
    """positions * frequency, in radians within (-pi, pi) plus what the fraction of a float position adds.

    Args:
      positions: any integer or float dtype, magnitudes below 2^32 (of an integer dtype: what that holds).
      turns: from `fixed_point_turns`, broadcastable with positions.
      inv_freq: float32, the frequency that turns came from.
    """
    fraction: jax.Array | float = 0.0
    if jnp.issubdtype(positions.dtype, jnp.floating):
        positions = positions.astype(jnp.float32)
        whole = jnp.trunc(positions)
        fraction, positions = positions - whole, whole
    sign = jnp.where(positions < 0, -1.0, 1.0).astype(jnp.float32)
    p = jnp.abs(positions).astype(jnp.uint32)
    low, high = p & (_LIMB - 1), p >> 16
    g0, g1, g2, g3 = turns
    # in units of 2^-32 turns; what overflows is whole turns
    count = ((low * g0) << 16) + low * g1 + ((low * g2) >> 16) + ((high * g1) << 16) + high * g2 + ((high * g3) >> 16)
    part = lax.bitcast_convert_type(count, jnp.int32).astype(jnp.float32) * np.float32(2.0**-32)
    return sign * (part * np.float32(2 * np.pi)) + fraction * inv_freq
