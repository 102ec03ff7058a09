"""Synthetic tasks, sampled on the device. A new task is one new file here and one line in the list below."""

from rope_jax.tasks.base import BOS, EOS, FIRST_SYMBOL, PAD, SEP, Batch, Task
from rope_jax.tasks.copy import Copy
from rope_jax.tasks.reverse import Reverse

TASKS: tuple[type[Task], ...] = (Copy, Reverse)

__all__ = ["BOS", "EOS", "FIRST_SYMBOL", "PAD", "SEP", "TASKS", "Batch", "Copy", "Reverse", "Task"]
