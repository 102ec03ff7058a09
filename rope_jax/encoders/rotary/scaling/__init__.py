"""Frequency maps, one a file. A new one is one new file here and one line in the list below."""

from .base import *
from .dynamic_linear import *
from .dynamic_ntk import *
from .linear import *
from .llama3 import *
from .longrope import *
from .ntk import *
from .proportional import *
from .resonance import *
from .yarn import *
