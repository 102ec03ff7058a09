"""Encodings that add to the attention logits. A new one is one new file here and one line in the list below."""

from .alibi import *
from .base import *
from .cope import *
from .fire import *
from .kerple import *
from .sliding_window import *
from .t5 import *
from .transformer_xl import *
