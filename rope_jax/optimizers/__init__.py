"""Optimisers and learning-rate schedules. A new one is one new file here and one line in the list below."""

from rope_jax.optimizers.adamw import *
from rope_jax.optimizers.base import *
from rope_jax.optimizers.constant import *
from rope_jax.optimizers.sgd import *
from rope_jax.optimizers.warmup_cosine import *
