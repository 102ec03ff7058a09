"""Synthetic tasks, sampled on the device. A new task is one new file here and one line in the list below."""

from rope_jax.tasks.base import *
from rope_jax.tasks.copy import *
from rope_jax.tasks.reverse import *
