"""A learned row for each position, added to the input (Gehring et al. 2017, arXiv:1705.03122, section 3.1; BERT, GPT-2)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._internal import random
from .._internal.arrays import rows
from .._internal.inputs import known, require_not_negative
from ..base import Dims, Encoder, Params, Requirements, Tables
from ..positions.base import Positions

__all__ = ["Learned"]


@dataclass(frozen=True, kw_only=True)
class Learned(Encoder):
    """Adds row p of a learned table to the embedding at position p (Gehring et al. 2017, arXiv:1705.03122, section 3.1).

    The table has no row for position max_length or later. Rows that training does not use keep their initial values, apart from
    weight decay. A table longer than the training length is allowed, and shows the effect of untrained rows.

    Formula: x + table[p], table learned
    Extrapolates: no, there is no row from max_length on
    Knows: nothing

    Example:
      >>> rj.Learned(max_length=8).init(jax.random.key(0), dims)["table"].shape
      (8, 16)

    Attributes:
      max_length: rows of the table, for positions 0 .. max_length - 1.
      init_scale: standard deviation of the initial rows (0.02, as BERT and GPT-2).
    """

    max_length: int
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"Learned max_length must be at least 1, got {self.max_length}")
        require_not_negative("Learned init_scale", self.init_scale)

    def init(self, key: jax.Array, dims: Dims) -> Params:
        return {"table": self.init_scale * random.normal(key, (self.max_length, dims.width))}

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            position_axes=None,
            whole_positions=True,
            max_position=self.max_length - 1,
            beyond=f"Learned(max_length={self.max_length}) has no row for position {{position}}; raise max_length to {{length}} "
            f"or more, or keep to {self.max_length} input positions",
        )

    def embed(self, tables: Tables, x: jax.Array, positions: Positions) -> jax.Array:
        """Adds rows of the table. A position outside it is an error, or NaN where positions are traced; it is never clamped."""
        positions = positions.along(None, "Learned")
        positions.require_embeddings(x)
        p = positions.query
        if not jnp.issubdtype(p.dtype, jnp.integer):
            raise ValueError(
                f"Learned needs integer positions, got {p.dtype}; round them, or use an encoder that is a "
                "function of real positions, such as Sinusoidal or RoPE"
            )
        values = known(p)
        if values is not None:
            outside = values[(values < 0) | (values >= self.max_length)]
            if outside.size:
                raise ValueError(
                    f"Learned(max_length={self.max_length}) has no row for position {outside[0]}; raise max_length, or "
                    f"evaluate this encoder at lengths up to {self.max_length}"
                )
        return x + jnp.broadcast_to(rows(tables["table"], p), x.shape).astype(x.dtype)
