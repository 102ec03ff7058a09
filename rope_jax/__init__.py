"""Position encodings and length extrapolation in JAX.

Public functions and encoders stand at the top::

    import rope_jax as rj

    frequencies = rj.rotary_frequencies(64, scaling=rj.NTK(factor=4.0))
    cos, sin = rj.rotary_tables(frequencies, rj.positions.contiguous(1024))
    q = rj.rotate(q, cos, sin)

Experiments: `python -m experiments.compare --help`.
"""

from types import ModuleType as _ModuleType

from rope_jax import encoders, interop, tasks
from rope_jax.encoders import *
from rope_jax.encoders import positions
from rope_jax.interop import *

__version__ = "0.1.0"


def __dir__() -> list[str]:
    """The public names, without the modules that they come from."""
    apart = {"encoders", "interop", "positions", "tasks"}
    return [name for name, value in globals().items() if name in apart or not isinstance(value, _ModuleType)]
