"""xPos: RoPE whose pairs decay with distance, the fast ones most (Sun et al. 2022, arXiv:2212.10554)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ..base import Dims, Tables
from ..positions import Positions
from .functional import Frequencies
from .rope import RoPE

__all__ = ["XPos", "xpos_decay"]

_LARGEST = 80.0  # exp of this leaves float32 a factor of 3,000 to its largest number


def xpos_decay(rotary_dim: int) -> jax.Array:
    """zeta_i = (2 i + 0.4 R) / (1.4 R), the decay of pair i over scale_base positions (arXiv:2212.10554, section 3.2).

    Args:
      rotary_dim: R, even and at least 2.

    Returns:
      float32 [R/2], between 2/7 and 1.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(
            f"rotary_dim must be even and at least 2, got {rotary_dim}: features are turned in pairs; choose another width"
        )
    return jnp.asarray((2 * np.arange(rotary_dim // 2) + 0.4 * rotary_dim) / (1.4 * rotary_dim), jnp.float32)


@dataclass(frozen=True, kw_only=True)
class XPos(RoPE):
    """RoPE whose pairs also decay with distance, for a query that looks back (arXiv:2212.10554, algorithm 1).

    The part of pair i in a score falls as zeta_i^((m - n) / scale_base); it would grow towards later keys, so xPos is for causal
    attention. Queries shrink as keys grow: float32 and bfloat16 hold them up to about 30,000 positions
    from the centre (scale_base 512), float16 up to 4,500.

    Formula: RoPE, with pair i of q_m times zeta_i^((m - centre) / scale_base), of k_n times zeta_i^(-(n - centre) / scale_base)
    Extrapolates: in part, the decay hides what unseen angles do
    Knows: nothing

    Example:
      >>> rj.xpos_decay(4)
      Array([0.2857143 , 0.64285713], dtype=float32)

    Attributes:
      scale_base: positions over which pair i decays by zeta_i (512 in the paper).
      centre: the position where nothing is scaled; fixed, so that cached keys stay valid.
      sections, arrangement: RoPE's, and not for xPos, which decays along one axis.
    """

    scale_base: float = 512.0
    centre: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale_base < math.inf:
            raise ValueError(f"XPos scale_base must be positive, got {self.scale_base}; the paper's is 512.0")
        if not math.isfinite(self.centre):
            raise ValueError(f"XPos centre must be finite, got {self.centre}; 0.0 is the first position")
        if self.sections is not None:
            raise ValueError(f"XPos decays along one axis, got sections={self.sections}; leave them out, or use RoPE")

    def check(self, dims: Dims, length: int) -> None:
        super().check(dims, length)
        reach = self.scale_base * _LARGEST / math.log(3.5)
        furthest = max(abs(self.centre), abs(length - 1 - self.centre))
        if furthest > reach:
            middle = (length - 1) / 2
            raise ValueError(
                f"XPos keys at {furthest:.0f} positions from the centre would leave float32; it holds {reach:.0f} with "
                f"scale_base={self.scale_base}: raise scale_base to {math.ceil(self.scale_base * furthest / reach)}"
                + (f", or move the centre to {middle:.0f}" if middle < reach - 1 else "")
            )

    def tables(self, prepared: Frequencies, positions: Positions) -> Tables:
        tables = super().tables(prepared, positions)
        log_decay = jnp.log(xpos_decay(2 * prepared.inv_freq.shape[-1])) / self.scale_base

        def decayed(turns: tuple[jax.Array, jax.Array], at: jax.Array, sign: float) -> tuple[jax.Array, jax.Array]:
            exponent = jnp.expand_dims(sign * (at.astype(jnp.float32) - self.centre), -1)
            scale = jnp.exp(exponent * log_decay.reshape((1,) * at.ndim + (-1,)))
            scale = jnp.reshape(scale, (1,) * (turns[0].ndim - scale.ndim) + scale.shape)
            return turns[0] * scale, turns[1] * scale

        return {"query": decayed(tables["query"], positions.query, 1.0), "key": decayed(tables["key"], positions.keys, -1.0)}
