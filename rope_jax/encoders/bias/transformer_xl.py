"""Transformer-XL's relative attention (Dai et al. 2019, arXiv:1901.02860)."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from .._internal import random
from .._internal.arrays import difference, pairwise, with_query_heads
from .._internal.inputs import require_not_negative
from ..additive.sinusoidal import inverse_wavelengths
from ..base import Dims, Params, Requirements, Tables
from ..positions.base import Positions
from .base import Bias

__all__ = ["TransformerXL"]


@dataclass(frozen=True, kw_only=True)
class TransformerXL(Bias):
    """Adds terms of the key's content and of the distance, as the query sees it (arXiv:1901.02860, section 3.3).

    The score q . k becomes (q + u) . k + (q + v) . W R(q_position - k_position); the bias is all of it but q . k. By the addition
    theorem, the last term is a product of a rotated query and the sines and cosines of a key's position, so no table of pairs is
    needed.

    Formula: bias[h, q, k] = (u_h . k + (q + v_h) . W_h R(q - k)) / sqrt(D), R sinusoidal; u, v, W learned, shared by the layers
    Extrapolates: yes in form; the model has not seen R at distances beyond training
    Knows: nothing

    Example:
      >>> params = rj.TransformerXL().init(jax.random.key(0), dims)
      >>> rj.TransformerXL().bias(params, q, k, positions).shape  # heads, queries, keys
      (2, 3, 3)

    Attributes:
      base: the base of the sinusoids, as in `sinusoidal`.
      init_scale: standard deviation of the initial u, v and W.
    """

    base: float = 10_000.0
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        if self.base <= 0:
            raise ValueError(f"TransformerXL base must be positive, got {self.base}; the usual value is 10000.0")
        require_not_negative("TransformerXL init_scale", self.init_scale)

    @property
    def requirements(self) -> Requirements:
        return replace(super().requirements, sizes=(self._require_even_width,))

    def _require_even_width(self, dims: Dims) -> None:
        if dims.width % 2:
            raise ValueError(
                f"TransformerXL needs an even width, got {dims.width}: its sinusoids are pairs of a sine and a cosine; add or "
                "drop a feature"
            )

    def init(self, key: jax.Array, dims: Dims) -> Params:
        u, v, w = random.split(key, 3)
        heads = (dims.num_heads, dims.head_dim)
        return {
            "u": self.init_scale * random.normal(u, heads),
            "v": self.init_scale * random.normal(v, heads),
            "w": self.init_scale * random.normal(w, (2, dims.width // 2, *heads)),
        }

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array:
        positions = self.positions_of(q, k, positions)
        pairs = tables["w"].shape[1]
        inverse = jnp.asarray(inverse_wavelengths(2 * pairs, self.base, "vaswani"), jnp.float32)

        # only distances matter; relative to the first key, angles are no larger than the length of the text requires
        keys = positions.keys
        first = keys[..., :1] if keys.shape[-1] != 0 else jnp.zeros((*keys.shape[:-1], 1), keys.dtype)

        def waves(places: jax.Array) -> tuple[jax.Array, jax.Array]:
            relative = jnp.squeeze(difference(*pairwise(places, first)), -1)
            angles = jnp.expand_dims(relative, -1) * inverse.reshape((1,) * relative.ndim + (-1,))
            return jnp.sin(angles), jnp.cos(angles)

        def product(pattern: str, a: jax.Array, b: jax.Array) -> jax.Array:
            return jnp.einsum(pattern, a, b, precision=lax.Precision.HIGHEST)

        q, k = q.astype(jnp.float32), with_query_heads(q, k).astype(jnp.float32)
        q = q + tables["v"].reshape((1,) * (q.ndim - 2) + tables["v"].shape)
        # the query's coefficients of the sines and of the cosines of the distance, [..., Tq, H, pairs]
        sin_weight, cos_weight = (product("...thd,phd->...thp", q, tables["w"][i]) for i in (0, 1))
        sin, cos = (jnp.expand_dims(x, -2) for x in waves(positions.query))
        sin, cos = (jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, sin_weight.shape)) for x in (sin, cos))
        # sin(m - n) = sin m cos n - cos m sin n, cos(m - n) = cos m cos n + sin m sin n
        key_sin_weight, key_cos_weight = cos_weight * sin - sin_weight * cos, sin_weight * sin + cos_weight * cos
        key_sin, key_cos = waves(positions.keys)
        distance = product("...thp,...sp->...hts", key_sin_weight, key_sin)
        distance = distance + product("...thp,...sp->...hts", key_cos_weight, key_cos)
        content = product("hd,...shd->...hs", tables["u"], k)
        return (distance + jnp.expand_dims(content, -2)) / math.sqrt(q.shape[-1])
