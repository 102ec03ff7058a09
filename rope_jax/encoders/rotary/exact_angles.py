"""Angles at distant positions without 64-bit floats: frequencies as 64-bit fixed-point turns, reduced by integer overflow.

A float32 product position * inv_freq has 24 bits for the whole angle. At position 1e7 none of them is left for the angle within
one turn. Here a frequency is a fraction of a turn, stored in four 16-bit limbs. Its product with an integer position is exact,
whole turns overflow, and a single rounding to float32 remains at the end.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._internal.arrays import distance
from .._internal.inputs import known

_LIMBS = 4
_LIMB = 1 << 16
_TOO_LARGE = 2.0**32


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits float32 x into two floats of 12 significant bits with the exact sum x.

    Masking bits is safe: XLA cannot simplify it away.
    """
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000), jnp.float32)
    return high, x - high


def _inverse_two_pi() -> list[float]:
    """1 / (2 pi) as the sum of five floats of 12 significant bits."""
    terms, rest = [], 1 / (2 * np.pi)
    for _ in range(5):
        scale = 2.0 ** (12 - np.frexp(rest)[1])
        terms.append(float(np.trunc(rest * scale) / scale))
        rest -= terms[-1]
    return terms


def fixed_point_turns(inv_freq: jax.Array, inv_freq_low: jax.Array) -> list[jax.Array]:
    """(inv_freq + inv_freq_low) / (2 pi), modulo one turn, as four uint32 arrays of 16 bits each, the most significant first."""
    sums = [jnp.zeros_like(inv_freq, jnp.int32) for _ in range(_LIMBS)]
    for term in (*_split(inv_freq), *_split(inv_freq_low)):
        for constant in _inverse_two_pi():
            product = term * constant  # 12 bits times 12 bits: exact
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


def require_reducible(positions: jax.Array) -> None:
    """Raises ValueError for concrete real positions whose size is 2^32 or more, which `reduced_angle` does not hold."""
    values = None if jnp.issubdtype(positions.dtype, jnp.integer) else known(positions)
    if values is not None and np.any(np.abs(values) >= _TOO_LARGE):
        raise ValueError(f"exact=True needs positions below 2^32 in size, got {np.max(np.abs(values)):g}; use smaller positions")


def reduced_angle(positions: jax.Array, turns: list[jax.Array], inv_freq: jax.Array) -> jax.Array:
    """positions * frequency without whole turns, in radians.

    For an integer position the angle is in (-pi, pi). The fraction of a float position adds fraction * inv_freq to it.

    Args:
      positions: integers of at least 32 bits, or float32; of a size below 2^32.
      turns: from `fixed_point_turns`, broadcastable with positions.
      inv_freq: float32, the frequency that turns was computed from.

    Returns:
      float32, of the broadcast shape; NaN where a position is too large.
    """
    fraction: jax.Array | float = 0.0
    if jnp.issubdtype(positions.dtype, jnp.floating):
        whole = jnp.trunc(positions)
        fraction, positions = positions - whole, whole
    sign = jnp.where(positions < 0, -1.0, 1.0).astype(jnp.float32)
    size = distance(positions, jnp.zeros_like(positions))
    if positions.dtype not in (jnp.int32, jnp.uint32):
        sign = jnp.where(size < _TOO_LARGE, sign, jnp.nan)
    p = size.astype(jnp.uint32)
    low, high = p & (_LIMB - 1), p >> 16
    g0, g1, g2, g3 = turns
    # in units of 2^-32 turns, so that whole turns overflow
    count = ((low * g0) << 16) + low * g1 + ((low * g2) >> 16) + ((high * g1) << 16) + high * g2 + ((high * g3) >> 16)
    within_turn = lax.bitcast_convert_type(count, jnp.int32).astype(jnp.float32) * np.float32(2.0**-32)
    return sign * (within_turn * np.float32(2 * np.pi)) + fraction * inv_freq
