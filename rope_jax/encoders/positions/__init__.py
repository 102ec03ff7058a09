"""Positions as data: the class that holds them, and the functions that make them, apart from the encoders that read them."""

from .base import *
from .computed import *
from .drawn import *
