"""Position encodings: pure functions of arrays, and the frozen dataclasses that plug them into a model.

This package imports jax and numpy alone, so that it can be lifted into any code base. A new encoder is one new file here and
one line in the list below.
"""

from .additive import *
from .base import *
from .bias import *
from .combine import *
from .layers import *
from .positions import *
from .rotary import *
from .temperature import *
