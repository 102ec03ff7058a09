"""Encodings that are added to the input. A new one is one new file here and one line in the list below."""

from .learned import *
from .sinusoidal import *
