"""What a task is to training and evaluation: examples of stated lengths, drawn on the device.

An example of n symbols is BOS x SEP y EOS, 2n + 3 tokens. The model reads all but the last and is asked for y and EOS, so an
input has 2n + 2 positions. With an end marker it is SEP x EOS SEP y EOS, one more: x ends as y does, and the end can be
copied like any symbol. Lengths in configs and rows count symbols of x; `Batch.lengths` counts input positions.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal.typed_dataclass import Checked

__all__ = ["BOS", "EOS", "FIRST_SYMBOL", "PAD", "SEP", "Batch", "Task"]

PAD, BOS, SEP, EOS = range(4)
FIRST_SYMBOL = 4


class Batch(NamedTuple):
    """Examples, padded on the right to one length.

    Attributes:
      tokens: int32 [B, T], what the model reads.
      targets: int32 [B, T], the token that follows each.
      loss_mask: bool [B, T], true where the target belongs to y or is EOS.
      lengths: int32 [B], the unpadded number of input positions.
    """

    tokens: jax.Array
    targets: jax.Array
    loss_mask: jax.Array
    lengths: jax.Array


@dataclass(frozen=True, kw_only=True)
class Task(Checked):
    """Base of the tasks: x is a random string, y a function of it.

    Attributes:
      alphabet: how many different symbols there are.
      unique: no symbol occurs twice in x, which then is at most `alphabet` long.
      end_marker: examples are SEP x EOS SEP y EOS instead of BOS x SEP y EOS, with the same x.
    """

    alphabet: int = 16
    unique: bool = False
    end_marker: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alphabet < 1:
            raise ValueError(f"{type(self).__name__} alphabet must be at least 1, got {self.alphabet}")

    @property
    def name(self) -> str:
        """As rows and tables call the task."""
        return type(self).__name__.lower()

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are: the symbols, PAD, BOS, SEP and EOS."""
        return self.alphabet + FIRST_SYMBOL

    def input_length(self, length: Any) -> Any:
        """Input positions of an example of `length` symbols; for arrays too."""
        return 2 * length + 2 + self.end_marker

    @property
    def markers(self) -> dict[int, str]:
        """The tokens that part every example a model reads, with their names."""
        return {SEP: "SEP", EOS: "EOS"} if self.end_marker else {SEP: "SEP"}

    def check(self, longest: int) -> None:
        """Raises ValueError if there are no examples of `longest` symbols."""
        if self.unique and longest > self.alphabet:
            raise ValueError(
                f"{type(self).__name__}(unique=True, alphabet={self.alphabet}) has no string of {longest} different symbols; "
                f"use lengths up to {self.alphabet}, or a larger alphabet"
            )

    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        """y for one x: int32 [N] -> int32 [N], of which the first `length` entries count."""
        raise TypeError(f"{type(self).__name__} defines no answer(x, length)")

    def sample(self, key: jax.Array, lengths: jax.Array, *, max_length: int) -> Batch:
        """Draws one example for each length; what is drawn does not depend on max_length.

        Args:
          key: a jax.random.key.
          lengths: int32 [B], symbols of each x, 1 .. max_length; may be traced.
          max_length: what examples are padded to, a Python int.

        Returns:
          Batch with T = input_length(max_length).
        """
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(lengths.shape[0]))
        return jax.vmap(lambda key, length: self._example(key, length, max_length))(keys, lengths)

    def _example(self, key: jax.Array, length: jax.Array, max_length: int) -> Batch:
        x = self._symbols(key, max_length) + FIRST_SYMBOL
        y = self.answer(x, length)
        at = jnp.arange(self.input_length(max_length) + 1)
        asked = at - length - 2 - self.end_marker  # the index in y of what stands at `at`
        sequence = jnp.where(at <= length, x[jnp.clip(at - 1, 0, max_length - 1)], y[jnp.clip(asked, 0, max_length - 1)])
        if self.end_marker:
            sequence = jnp.where(asked == -2, EOS, sequence)
        first = SEP if self.end_marker else BOS
        sequence = jnp.where(at == 0, first, jnp.where(asked == -1, SEP, jnp.where(asked == length, EOS, sequence)))
        sequence = jnp.where(asked > length, PAD, sequence).astype(jnp.int32)
        read = at[:-1] < self.input_length(length)
        return Batch(
            tokens=jnp.where(read, sequence[:-1], PAD),
            targets=sequence[1:],
            loss_mask=read & (asked[1:] >= 0),
            lengths=self.input_length(length),
        )

    def _symbols(self, key: jax.Array, max_length: int) -> jax.Array:
        """int32 [max_length], 0 .. alphabet - 1; entry i does not depend on max_length."""
        if self.unique:
            drawn = jax.random.permutation(key, self.alphabet)[:max_length]
            return jnp.pad(drawn, (0, max_length - drawn.shape[0]))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(max_length))
        return jax.vmap(lambda key: jax.random.randint(key, (), 0, self.alphabet))(keys)
