"""Synthetic tasks, sampled on the device. A new task is one new file here and one line in the list below.

What tasks are built from: `batch` (examples as arrays), `formats` (the usual formats) and `metrics` (what is measured).
"""

from rope_jax.tasks.base import *
from rope_jax.tasks.batch import *
from rope_jax.tasks.copy import *
from rope_jax.tasks.formats import *
from rope_jax.tasks.reverse import *
from rope_jax.tasks.strings import *
