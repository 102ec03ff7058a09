"""Encodings that rotate queries and keys. A new one is one new file here and one line in the list below."""

from .functional import *
from .rope import *
from .scaling import *
from .xpos import *
