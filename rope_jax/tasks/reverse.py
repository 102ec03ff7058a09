"""Reversal: y is x backwards."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rope_jax.tasks.strings import StringTask

__all__ = ["Reverse"]


@dataclass(frozen=True, kw_only=True)
class Reverse(StringTask):
    """Repeat the string backwards.

    The example of a b c is

        BOS a b c SEP c b a EOS

    and with end_marker=True

        SEP a b c EOS SEP c b a EOS

    The model reads all but the last token. Trained on and scored are the predictions of y and EOS: c b a EOS.
    """

    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        return x[jnp.clip(length - 1 - jnp.arange(x.shape[0], dtype=jnp.int32), 0, x.shape[0] - 1)]
