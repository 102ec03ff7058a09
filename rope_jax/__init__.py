"""Position encodings and length extrapolation in JAX.

Public functions and encoders stand at the top::

    import rope_jax as rj

    frequencies = rj.rotary_frequencies(64, scaling=rj.NTK(factor=4.0))
    cos, sin = rj.rotary_tables(frequencies, rj.positions.contiguous(1024))
    q = rj.rotate(q, cos, sin)

Experiments: `python -m experiments.compare --help`.
"""

from rope_jax import encoders, interop, positions, tasks
from rope_jax.encoders import *
from rope_jax.interop import *

__version__ = "0.1.0"
