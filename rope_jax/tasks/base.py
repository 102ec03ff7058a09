"""What a task gives to training and evaluation: its examples, drawn on the device, and its metrics.

Lengths in configs and rows count symbols of the string x; `Task.input_length` says how many input positions that makes, and
`Batch.lengths` counts those.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics import ExactMatch, Metric, TokenAccuracy
from rope_jax.tasks.names import snake_case

__all__ = ["Task"]


@dataclass(frozen=True, kw_only=True)
class Task(TypedDataclass, ABC):
    """Base of the tasks. `StringTask` is the base of those that answer a random string with another string.

    A subclass defines `vocabulary`, `input_length` and `sample`.

    Attributes:
      causal: whether a token sees only itself and the tokens before it. With `causal: ClassVar[bool] = False` every token sees
        the whole example, in training and in evaluation.
    """

    causal: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The task's name in rows and tables."""
        return snake_case(type(self).__name__)

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many different tokens there are: tokens and targets lie in 0 .. vocabulary - 1."""

    @abstractmethod
    def input_length(self, length: Any) -> Any:
        """The input positions of an example of `length` symbols; `length` is an int or an int array.

        A longer example must not have fewer positions: examples of up to n symbols are padded to input_length(n).
        """

    @abstractmethod
    def sample(self, key: jax.Array, lengths: jax.Array, *, max_length: int) -> Batch:
        """Draws one example for each length; what is drawn must not depend on max_length.

        Args:
          key: a jax.random.key.
          lengths: int32 [B], symbols of each example, 1 .. max_length; may be traced.
          max_length: the symbols of the longest example that the batch has room for, a Python int.

        Returns:
          Batch with T = input_length(max_length).
        """

    @property
    def markers(self) -> dict[int, str]:
        """The tokens that separate the sections of every example, with their names; {} if there are none."""
        return {}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What evaluation measures, one column of the rows each."""
        return (ExactMatch(), TokenAccuracy())

    @property
    def string_options(self) -> dict[str, Any]:
        """The options that determine the test examples' strings, by name; by default all fields.

        The key of the test examples is derived from these options and the class's name alone. An option that only changes
        the format of an example is left out, so that tasks which differ in it are tested on the same strings.
        """
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def num_examples(self, length: int) -> int | None:
        """How many different examples of `length` symbols there are, if all are equally probable; None: not known."""
        return None

    def check(self, longest: int) -> None:
        """Raises ValueError if there are no examples of up to `longest` symbols. By default there are."""
