"""Reversal: y is x backwards."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.base import Task

__all__ = ["Reverse"]


@dataclass(frozen=True, kw_only=True)
class Reverse(Task):
    """Repeat the string backwards: BOS a b c SEP c b a EOS."""

    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        return x[jnp.clip(length - 1 - jnp.arange(x.shape[0]), 0, x.shape[0] - 1)]
