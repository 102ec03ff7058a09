"""Position encoders: pure functions of arrays, and the frozen dataclasses that plug them into a model.

This package imports jax and numpy alone, and by relative imports: copy the folder under any name and use it. A new encoder or
frequency map is one new file and one line in the list below.
"""

from .additive.learned import *
from .additive.sinusoidal import *
from .base import *
from .bias.alibi import *
from .bias.base import *
from .bias.cope import *
from .bias.fire import *
from .bias.kerple import *
from .bias.sliding_window import *
from .bias.t5 import *
from .bias.transformer_xl import *
from .combine import *
from .layers import *
from .positions.base import *
from .rotary.base import *
from .rotary.frequencies import *
from .rotary.functional import *
from .rotary.rope import *
from .rotary.scaling.base import *
from .rotary.scaling.dynamic_linear import *
from .rotary.scaling.dynamic_ntk import *
from .rotary.scaling.linear import *
from .rotary.scaling.llama3 import *
from .rotary.scaling.longrope import *
from .rotary.scaling.ntk import *
from .rotary.scaling.proportional import *
from .rotary.scaling.resonance import *
from .rotary.scaling.yarn import *
from .rotary.xpos import *
from .temperature import *
