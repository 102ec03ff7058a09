"""FIRE: a learned function of the distance relative to the query's position (Li et al. 2024, arXiv:2310.04418)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal import random
from ..base import Dims, Params, Tables
from ..positions.base import Positions
from .base import Bias, distances

__all__ = ["Fire"]


@dataclass(frozen=True, kw_only=True)
class Fire(Bias):
    """Adds the output of a small network for the normalised logarithmic distance (arXiv:2310.04418, eq. 18).

    For queries below the learned threshold it is a function of the distance alone. Beyond, distances are relative to the position
    of the query.

    Formula: bias[h, q, k] = MLP_h(ln(1 + c |q - k|) / ln(1 + c max(q, threshold))), c, threshold > 0 learned; MLP 1-hidden-ReLU-H
    Extrapolates: yes, the network's input stays between 0 and 1
    Knows: nothing

    Example:
      >>> params = rj.Fire().init(jax.random.key(0), dims)
      >>> rj.Fire().bias(params, q, k, positions).shape  # heads, queries, keys
      (2, 3, 3)

    Attributes:
      hidden: units of the hidden layer of the network.
      init_c, init_threshold: initial values of c and of the threshold (in positions).
    """

    hidden: int = 32
    init_c: float = 0.1
    init_threshold: float = 512.0

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"Fire hidden must be at least 1, got {self.hidden}; the paper has 32")
        for name, usual in (("init_c", 0.1), ("init_threshold", 512.0)):
            if getattr(self, name) <= 0:
                raise ValueError(f"Fire {name} must be positive, got {getattr(self, name)}; the paper has {usual}")

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Draws weights uniformly within 1 / sqrt(inputs); c and the threshold are stored as logarithms."""
        keys = random.split(key, 4)
        bound = self.hidden**-0.5
        return {
            "log_c": jnp.log(jnp.asarray(self.init_c, jnp.float32)),
            "log_threshold": jnp.log(jnp.asarray(self.init_threshold, jnp.float32)),
            "w1": random.uniform(keys[0], (self.hidden,), -1.0, 1.0),
            "b1": random.uniform(keys[1], (self.hidden,), -1.0, 1.0),
            "w2": random.uniform(keys[2], (self.hidden, dims.num_heads), -bound, bound),
            "b2": random.uniform(keys[3], (dims.num_heads,), -bound, bound),
        }

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        c, threshold = jnp.exp(tables["log_c"]), jnp.exp(tables["log_threshold"])
        distance = jnp.squeeze(distances(positions), -3)
        scale = jnp.log1p(c * jnp.maximum(positions.query.astype(jnp.float32), threshold))
        scale = jnp.reshape(scale, (1,) * (distance.ndim - 1 - scale.ndim) + (*scale.shape, 1))
        normalised = jnp.expand_dims(jnp.log1p(c * distance) / scale, -1)
        last = (1,) * (normalised.ndim - 1) + (-1,)
        hidden = jax.nn.relu(normalised * tables["w1"].reshape(last) + tables["b1"].reshape(last))
        out = jnp.matmul(hidden, tables["w2"], precision=jax.lax.Precision.HIGHEST) + tables["b2"].reshape(last)
        return jnp.moveaxis(out, -1, -3)
