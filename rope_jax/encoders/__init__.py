"""Position encodings: pure functions of arrays, and the frozen dataclasses that plug them into a model.

This package imports jax and numpy alone, so that it can be lifted into any code base. A new encoder is one new file here and
one line in the list below.
"""

from rope_jax.encoders.alibi import *
from rope_jax.encoders.base import *
from rope_jax.encoders.bias import *
from rope_jax.encoders.compose import *
from rope_jax.encoders.cope import *
from rope_jax.encoders.fire import *
from rope_jax.encoders.kerple import *
from rope_jax.encoders.layers import *
from rope_jax.encoders.learned import *
from rope_jax.encoders.llama3 import *
from rope_jax.encoders.longrope import *
from rope_jax.encoders.parts import *
from rope_jax.encoders.proportional import *
from rope_jax.encoders.resonance import *
from rope_jax.encoders.rope import *
from rope_jax.encoders.rotary import *
from rope_jax.encoders.scaling import *
from rope_jax.encoders.sinusoidal import *
from rope_jax.encoders.t5 import *
from rope_jax.encoders.temperature import *
from rope_jax.encoders.transformer_xl import *
from rope_jax.encoders.window import *
from rope_jax.encoders.xpos import *
from rope_jax.encoders.yarn import *
