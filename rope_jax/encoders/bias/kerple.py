"""KERPLE: kernels of the distance with two learned numbers for each head (Chi et al. 2022, arXiv:2205.09921)."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from .._internal import random
from ..base import Dims, Params, Tables
from ..positions.base import Positions
from .base import Bias, distances, per_head

__all__ = ["Kerple"]


@dataclass(frozen=True, kw_only=True)
class Kerple(Bias):
    """Adds a conditionally positive definite kernel of the distance (arXiv:2205.09921, section 4.2).

    Formula: log: -r1 ln(1 + r2 |q - k|); power: -r1 |q - k|^r2 with 0 < r2 <= 2; r1, r2 > 0 are learned for each head
    Extrapolates: yes, every distance has a penalty
    Knows: nothing

    Example:
      >>> params = rj.Kerple(kernel="power").init(jax.random.key(0), dims)
      >>> rj.Kerple(kernel="power").bias(params, q, k, positions).shape  # heads, queries, keys
      (2, 3, 3)

    Attributes:
      kernel: "log", the paper's choice, or "power".
    """

    kernel: Literal["log", "power"] = "log"

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Draws r1 and r2 uniformly in the ranges of the released code, without a hundredth of the range at either end.

        For "log", r1 is in (0, 2) and r2 in (0, 1); for "power", r1 is in (0, 1) and r2 in (0, 2). Stored are ln r1, and ln r2 or
        (power) ln(r2 / (2 - r2)), so that no training step leaves the range.
        """
        first, second = random.uniform(key, (2, dims.num_heads), 0.01, 0.99)
        if self.kernel == "log":
            return {"log_r1": jnp.log(2 * first), "log_r2": jnp.log(second)}
        return {"log_r1": jnp.log(first), "logit_r2": jnp.log(second) - jnp.log1p(-second)}

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        distance = distances(positions)
        r1 = per_head(jnp.exp(tables["log_r1"]), distance)
        if self.kernel == "log":
            return -r1 * jnp.log1p(per_head(jnp.exp(tables["log_r2"]), distance) * distance)
        r2 = per_head(2 * jax.nn.sigmoid(tables["logit_r2"]), distance)
        # 0^r2 is 0, but its derivative by r2 would be 0 * ln 0
        return jnp.where(distance > 0, -r1 * jnp.where(distance > 0, distance, 1.0) ** r2, 0.0)
