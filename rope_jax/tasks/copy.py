"""Copying: y = x."""

from dataclasses import dataclass

import jax

from rope_jax.tasks.strings import StringTask

__all__ = ["Copy"]


@dataclass(frozen=True, kw_only=True)
class Copy(StringTask):
    """Repeat the string.

    The example of a b c is

        BOS a b c SEP a b c EOS

    and with end_marker=True

        SEP a b c EOS SEP a b c EOS

    The model reads all but the last token. Trained on and scored are the predictions of y and EOS: a b c EOS.
    """

    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        return x
