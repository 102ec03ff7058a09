"""Dropout of the embeddings and of what each sublayer adds to the residual stream.

Srivastava et al. 2014; where it is applied, Vaswani et al. 2017, section 5.4.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.encoders._internal import random


@partial(jax.tree_util.register_dataclass, data_fields=["keys"], meta_fields=["rate"])
@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Drops each value with probability `rate`, and divides the others by 1 - rate so that the mean stays.

    Attributes:
      keys: uint32 [...], one random number per example.
      rate: 0 <= rate < 1; resolved to 2^-32.
    """

    keys: jax.Array
    rate: float

    def __call__(self, x: jax.Array, place: int, *, generator: Literal["counter", "threefry"] = "counter") -> jax.Array:
        """Applies dropout to one activation of the model.

        Args:
          x: float [..., T, width], the leading axes those of `keys`.
          place: which activation of the model x is; every place draws other values.
          generator: "counter" hashes the example's key, the place, the token and the feature, so that the same values are dropped
            however a batch is cut or padded. "threefry" draws from `jax.random`, where what is dropped also depends on T.

        Returns:
          The shape and dtype of x.
        """
        kept = (_kept_by_counter if generator == "counter" else _kept_by_threefry)(self.keys, self.rate, x.shape[-2:], place)
        return jnp.where(kept, x / (1 - self.rate), 0)


def _kept_by_counter(keys: jax.Array, rate: float, shape: tuple[int, ...], place: int) -> jax.Array:
    """bool [..., T, width]: what is kept, from a hash of (key, place, token, feature)."""
    token, feature = (jnp.arange(size, dtype=jnp.uint32) * _STEP for size in shape)
    row = _mix(jnp.add.outer(keys, _mix(token + jnp.uint32(place))))
    return _mix(jnp.add.outer(row, feature)) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def _kept_by_threefry(keys: jax.Array, rate: float, shape: tuple[int, ...], place: int) -> jax.Array:
    """bool [..., T, width]: what is kept, from `jax.random`."""

    def kept(key: jax.Array) -> jax.Array:
        return random.uniform(random.fold_in(random.key(key), place), shape) < 1 - rate

    return jax.vmap(kept)(keys.reshape(-1)).reshape(*keys.shape, *shape)


_STEP = np.uint32(0x9E3779B9)  # odd, so its multiples are all different


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 whose every output bit depends on every input bit (Wellons 2018's constants, "lowbias32")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
