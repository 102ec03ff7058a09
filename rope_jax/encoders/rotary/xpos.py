"""xPos: RoPE whose pairs decay with distance, the fast ones most (Sun et al. 2022, arXiv:2212.10554)."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from .._internal.inputs import known
from ..base import Requirements, Tables
from ..positions.base import Positions
from .base import Rotary
from .frequencies import Frequencies, require_rotary_dim
from .functional import rotary_tables

__all__ = ["XPos", "xpos_decay"]

_LARGEST_EXPONENT = 80.0  # exp(80) is still several thousand times smaller than the largest float32


def xpos_decay(rotary_dim: int) -> jax.Array:
    """zeta_i = (2 i + 0.4 R) / (1.4 R), the decay of pair i over scale_base positions (arXiv:2212.10554, section 3.2).

    Args:
      rotary_dim: R, even and at least 2.

    Returns:
      float32 [R/2], between 2/7 and 1.
    """
    require_rotary_dim(rotary_dim)
    return jnp.asarray((2 * np.arange(rotary_dim // 2) + 0.4 * rotary_dim) / (1.4 * rotary_dim), jnp.float32)


@dataclass(frozen=True, kw_only=True)
class XPos(Rotary):
    """RoPE whose pairs also decay with the distance to earlier keys (arXiv:2212.10554, algorithm 1).

    The term of pair i in a score decays as zeta_i^((m - n) / scale_base). It would grow towards later keys, so xPos is for causal
    attention. Queries shrink with the position and keys grow. float32 and bfloat16 hold them up to about 30,000 positions from
    the centre (with scale_base 512), float16 up to 4,500.

    Formula: RoPE, with pair i of q_m times zeta_i^((m - centre) / scale_base), of k_n times zeta_i^(-(n - centre) / scale_base)
    Extrapolates: in part; the decay hides the effect of angles never seen
    Knows: nothing

    Example:
      >>> rj.xpos_decay(4)
      Array([0.2857143 , 0.64285713], dtype=float32)

    Attributes:
      scale_base: positions over which pair i decays by zeta_i (512 in the paper).
      centre: the position at which queries and keys are not scaled; it is fixed, so that cached keys stay valid.
    """

    scale_base: float = 512.0
    centre: float = 0.0

    def __post_init__(self) -> None:
        if self.scale_base <= 0:
            raise ValueError(f"XPos scale_base must be positive, got {self.scale_base}; the paper has 512.0")
        if abs(self.centre) > self._reach:
            raise ValueError(
                f"XPos centre={self.centre} is more than {math.floor(self._reach)} positions from position 0, which is too far "
                f"for float32 with scale_base={self.scale_base}; raise scale_base, or choose a nearer centre"
            )

    @property
    def _reach(self) -> float:
        """How far from the centre float32 holds the scales."""
        return self.scale_base * _LARGEST_EXPONENT / math.log(3.5)

    @property
    def requirements(self) -> Requirements:
        return replace(
            super().requirements,
            causal=True,
            max_position=math.floor(self.centre + self._reach),
            beyond=f"XPos(scale_base={self.scale_base}, centre={self.centre}) holds positions up to {math.floor(self._reach)} "
            "from its centre in float32, but position {position} is required; raise scale_base, or move the centre",
        )

    def tables(self, prepared: Frequencies, positions: Positions) -> Tables:
        """cos and sin, times the scales, for queries and keys: {"query": (cos, sin), "key": (cos, sin)}."""
        positions = positions.along(None, "XPos")
        positions.require_causal("XPos")
        log_decay = jnp.log(xpos_decay(2 * prepared.inv_freq.shape[-1])) / self.scale_base

        def scaled(place: jax.Array, sign: float) -> tuple[jax.Array, jax.Array]:
            values = known(place)
            if values is not None and np.any(np.abs(values - self.centre) > self._reach):
                raise ValueError(self.requirements.beyond.format(position=np.max(np.abs(values))))
            cos, sin = rotary_tables(prepared, place, exact=self.exact)
            exponent = jnp.expand_dims(sign * (place.astype(jnp.float32) - self.centre), -1)
            scale = jnp.exp(exponent * log_decay.reshape((1,) * place.ndim + (-1,)))
            scale = jnp.reshape(scale, (1,) * (cos.ndim - scale.ndim) + scale.shape)
            return cos * scale, sin * scale

        return {"query": scaled(positions.query, 1.0), "key": scaled(positions.keys, -1.0)}
