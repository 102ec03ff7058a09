"""Position encodings: pure functions of arrays, and the frozen dataclasses that plug them into a model.

This package imports jax and numpy alone, so that it can be lifted into any code base. A new encoder is one new file here and
one line in the list below.
"""

from rope_jax.encoders.base import Dims, Encoder, NoPE, Positions
from rope_jax.encoders.learned import Learned
from rope_jax.encoders.rotary import (
    Frequencies,
    RoPE,
    rotary_frequencies,
    rotary_tables,
    rotate,
    rotation_matrix,
)
from rope_jax.encoders.scaling import NTK, DynamicLinear, DynamicNTK, FrequencyMap, Linear
from rope_jax.encoders.sinusoidal import Sinusoidal, sinusoidal, sinusoidal_shift

ENCODERS: tuple[type[Encoder], ...] = (NoPE, Sinusoidal, Learned, RoPE)
SCALINGS: tuple[type[FrequencyMap], ...] = (Linear, NTK, DynamicLinear, DynamicNTK)

__all__ = [
    "ENCODERS",
    "NTK",
    "SCALINGS",
    "Dims",
    "DynamicLinear",
    "DynamicNTK",
    "Encoder",
    "Frequencies",
    "FrequencyMap",
    "Learned",
    "Linear",
    "NoPE",
    "Positions",
    "RoPE",
    "Sinusoidal",
    "rotary_frequencies",
    "rotary_tables",
    "rotate",
    "rotation_matrix",
    "sinusoidal",
    "sinusoidal_shift",
]
