"""Copying: y = x."""

from dataclasses import dataclass

import jax

from rope_jax.tasks.base import Task

__all__ = ["Copy"]


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """Repeat the string: BOS a b c SEP a b c EOS."""

    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        return x
