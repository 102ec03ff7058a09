"""Tasks that answer a random string x with a string y, a function of x."""

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal import random
from rope_jax.encoders._internal.inputs import integers
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.formats import EOS, FIRST_SYMBOL, SEP, decoder
from rope_jax.tasks.metrics import ContentError, EndError, Metric

__all__ = ["StringTask"]

_MOST_CHECKED_LENGTHS = 10_000  # checking more would take longer than the rest of a config


@dataclass(frozen=True, kw_only=True)
class StringTask(Task):
    """Base of the tasks on strings: x is random, y = answer(x), and an example is BOS x SEP y EOS.

    A subclass defines `answer`, and `answer_length` where y is not as long as x.

    Attributes:
      alphabet: how many different symbols there are.
      unique: whether no symbol occurs twice in x, which then has at most `alphabet` symbols.
      end_marker: whether examples are SEP x EOS SEP y EOS instead of BOS x SEP y EOS, with the same x.
    """

    alphabet: int = 16
    unique: bool = False
    end_marker: bool = False

    def __post_init__(self) -> None:
        if self.alphabet < 1:
            raise ValueError(f"{type(self).__name__} alphabet must be at least 1, got {self.alphabet}")

    @abstractmethod
    def answer(self, x: jax.Array, length: jax.Array) -> jax.Array:
        """y for one x.

        Args:
          x: int32 [N], of which the first `length` entries count; symbols are FIRST_SYMBOL and above.
          length: int32 [], symbols of x; may be traced.

        Returns:
          int32 [answer_length(N)], of which the first answer_length(length) entries count.
        """

    def answer_length(self, length: Any) -> Any:
        """The symbols of y for an x of `length` symbols, an int or an int array; must not decrease as `length` grows."""
        return length

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are: the symbols, PAD, BOS, SEP and EOS."""
        return self.alphabet + FIRST_SYMBOL

    def input_length(self, length: Any) -> Any:
        """The input positions of an example whose x has `length` symbols; `length` is an int or an int array."""
        return length + self.answer_length(length) + 2 + int(self.end_marker)

    @property
    def markers(self) -> dict[int, str]:
        """SEP, and with an end marker EOS: they stand in every example that a model reads."""
        return {SEP: "SEP", EOS: "EOS"} if self.end_marker else {SEP: "SEP"}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What evaluation measures: the metrics of every task, and errors in symbols of y apart from errors in its end."""
        return (*super().metrics, ContentError(), EndError())

    @property
    def string_options(self) -> dict[str, Any]:
        """What determines x; the format does not, nor do options that a subclass adds."""
        return {"alphabet": self.alphabet, "unique": self.unique}

    def num_examples(self, length: int) -> int:
        """How many different x of `length` symbols there are; y follows from x."""
        return math.perm(self.alphabet, length) if self.unique else self.alphabet**length

    def check(self, longest: int) -> None:
        """Raises ValueError if there is no x of `longest` symbols, or if answer_length does not fit."""
        if self.unique and longest > self.alphabet:
            raise ValueError(
                f"{type(self).__name__}(unique=True, alphabet={self.alphabet}) has no string of {longest} different symbols; "
                f"use lengths up to {self.alphabet}, or a larger alphabet"
            )
        lengths = [*range(1, min(longest, _MOST_CHECKED_LENGTHS) + 1), longest]
        for before, length in itertools.pairwise(lengths):
            shorter, longer = self.answer_length(before), self.answer_length(length)
            if longer < shorter:
                raise ValueError(
                    f"{type(self).__name__}.answer_length must not decrease as x grows, got {shorter} for {before} symbols "
                    f"and {longer} for {length}; fill up the shorter answers"
                )

    def sample(self, key: jax.Array, lengths: jax.Array, *, max_length: int) -> Batch:
        lengths = integers("lengths", lengths, lowest=0, highest=max_length).astype(jnp.int32)
        keys = random.keys_of(key, lengths.shape[0])
        return jax.vmap(lambda key, length: self._example(key, length, max_length))(keys, lengths)

    def _example(self, key: jax.Array, length: jax.Array, max_length: int) -> Batch:
        x = self._symbols(key, max_length) + FIRST_SYMBOL
        y = self.answer(x, length)
        if y.shape != (self.answer_length(max_length),):
            raise ValueError(
                f"{type(self).__name__}.answer(x, length) must return {self.answer_length(max_length)} symbols for x of shape "
                f"{x.shape}, got shape {y.shape}; return an array of answer_length(x.shape[0]) symbols, or define answer_length"
            )
        return decoder(x, length, y, self.answer_length(length), end_marker=self.end_marker)

    def _symbols(self, key: jax.Array, max_length: int) -> jax.Array:
        """int32 [max_length], 0 .. alphabet - 1; entry i does not depend on max_length."""
        if self.unique:
            drawn = random.permutation(key, self.alphabet)[:max_length]
            return jnp.pad(drawn, (0, max_length - drawn.shape[0]))
        return jax.vmap(lambda key: random.randint(key, (), 0, self.alphabet))(random.keys_of(key, max_length))
