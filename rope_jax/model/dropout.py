"""Dropout on what each sublayer adds to the residual stream, and on its input (Srivastava et al. 2014; Vaswani et al. 2017, 5.4).

What is dropped is a function of the example's key, the place in the model, the token and the feature: it stays the same however a
batch is cut or padded.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


@partial(jax.tree_util.register_dataclass, data_fields=["keys"], meta_fields=["rate"])
@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Drops each value with probability `rate`, and scales the others up so that the mean stays.

    Attributes:
      keys: uint32 [...], one random number an example.
      rate: 0 <= rate < 1; resolved to 2^-32.
    """

    keys: jax.Array
    rate: float

    def __call__(self, x: jax.Array, place: int) -> jax.Array:
        """Drops from x, [..., T, width], at the place of the model with this number."""
        token, feature = (jnp.arange(size, dtype=jnp.uint32) * _STEP for size in x.shape[-2:])
        row = _mix(jnp.add.outer(self.keys, _mix(token + jnp.uint32(place))))
        kept = _mix(jnp.add.outer(row, feature)) >= jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(kept, x / (1 - self.rate), 0)


_STEP = np.uint32(0x9E3779B9)  # odd, so its multiples are all different


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 whose every output bit depends on every input bit (Wellons 2018's constants, "lowbias32")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
