"""Conversions from and to other libraries: Hugging Face rope configs, and the feature order of their weights.

Nothing here needs `transformers`: a config is the dict that `json.load` returns.
"""

from rope_jax.interop.huggingface import *
from rope_jax.interop.weights import *
