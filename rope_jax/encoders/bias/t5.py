"""T5's relative bias: a learned number for each head and bucket of distances (Raffel et al. 2020, arXiv:1910.10683)."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from .._internal import random
from .._internal.arrays import rows
from .._internal.inputs import integers, require_not_negative, whole
from ..base import Dims, Params, Requirements, Tables
from ..positions.base import Positions
from .base import Bias, offsets

__all__ = ["T5Bias", "t5_bucket"]

_LARGEST_MAX_DISTANCE = 2**24  # float32, in which the released code computes buckets, holds every distance up to here


def _bucket_of_distance(buckets: int, max_distance: int) -> np.ndarray:
    """int32 [max_distance + 1]: the bucket of each distance; larger distances have the bucket of max_distance.

    It is computed on the host in the float32 steps of the released code, so that a distance on a bound is in the same bucket.
    """
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    log = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    coarse = log / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    bucket = np.where(distance < exact, distance, np.minimum(exact + coarse.astype(np.int32), buckets - 1))
    return bucket.astype(np.int32)


def _require_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The number of buckets for one direction; ValueError if single distances or far distances would have no bucket."""
    whole("T5 num_buckets", num_buckets)
    whole("T5 max_distance", max_distance, highest=_LARGEST_MAX_DISTANCE, hint="the usual value is 128")
    directions = 2 if bidirectional else 1
    if num_buckets < 2 * directions or num_buckets % directions:
        raise ValueError(
            f"T5 num_buckets must be {'even and at least 4 when bidirectional' if bidirectional else 'at least 2'}, "
            f"got {num_buckets}; the usual value is 32"
        )
    buckets = num_buckets // directions
    if max_distance <= buckets // 2:
        raise ValueError(
            f"T5 max_distance must be above {buckets // 2}, got {max_distance}: every distance below {buckets // 2} has a bucket "
            "by itself; raise max_distance, or lower num_buckets"
        )
    return buckets


def t5_bucket(relative_position: jax.Array, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> jax.Array:
    """The bucket of a relative position: each small distance has one, then buckets widen (arXiv:1910.10683, section 2.1).

    Args:
      relative_position: int [...], key position minus query position.
      bidirectional: half of the buckets are for keys after the query; otherwise all such keys share bucket 0.
      num_buckets: the number of buckets.
      max_distance: all distances from here on share the last bucket.

    Returns:
      int32 [...], from 0 to num_buckets - 1.

    Raises:
      ValueError: relative positions have a float dtype, or num_buckets and max_distance leave no bucket for some distance.
    """
    relative = integers("relative_position", relative_position, hint="round them, or use a bias of real distances, such as ALiBi")
    buckets = _require_buckets(num_buckets, max_distance, bidirectional)
    # first, since the least int32 has no absolute value; an unsigned dtype has no -max_distance
    lowest = 0 if jnp.issubdtype(relative.dtype, jnp.unsignedinteger) else -max_distance
    relative = jnp.clip(relative, lowest, max_distance).astype(jnp.int32)
    distance = jnp.abs(relative) if bidirectional else jnp.maximum(-relative, 0)
    bucket = rows(jnp.asarray(_bucket_of_distance(buckets, max_distance)), distance)
    return bucket + jnp.where(relative > 0, buckets, 0) if bidirectional else bucket


@dataclass(frozen=True, kw_only=True)
class T5Bias(Bias):
    """Adds a learned number for each head and bucket of distances (arXiv:1910.10683, section 2.1).

    Formula: bias[h, q, k] = table[t5_bucket(k - q), h]
    Extrapolates: yes, all distances from max_distance on share one learned number
    Knows: nothing

    Example:
      >>> rj.t5_bucket(-jnp.array([0, 1, 15, 16, 20, 128, 5000]), bidirectional=False).tolist()
      [0, 1, 15, 16, 17, 31, 31]

    Attributes:
      num_buckets, max_distance, bidirectional: as in `t5_bucket`.
      init_scale: standard deviation of the initial numbers.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        _require_buckets(self.num_buckets, self.max_distance, self.bidirectional)
        require_not_negative("T5Bias init_scale", self.init_scale)

    @property
    def requirements(self) -> Requirements:
        return replace(super().requirements, whole_positions=True)

    def init(self, key: jax.Array, dims: Dims) -> Params:
        return {"table": self.init_scale * random.normal(key, (self.num_buckets, dims.num_heads))}

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        for places in (positions.query, positions.keys):
            if not jnp.issubdtype(places.dtype, jnp.integer):
                raise ValueError(
                    f"T5Bias needs integer positions, got {places.dtype}; round them, or use a bias that is a function of real "
                    "distances, such as ALiBi, Kerple or Fire"
                )
        # float32 holds every offset that is not clipped
        offset = jnp.clip(offsets(positions), -self.max_distance, self.max_distance).astype(jnp.int32)
        bucket = t5_bucket(
            offset,
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return jnp.moveaxis(rows(tables["table"], bucket), -1, -3)
