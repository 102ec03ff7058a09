"""Position policies: they choose the positions of the tokens of a batch, in training and in evaluation.

A policy is an option of the config beside the encoder, and part of the data: it computes `Positions` from a batch with the
functions of `rope_jax.positions`. A policy that draws positions has a random key for each example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax

from rope_jax.encoders._internal import random
from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.encoders.positions import Positions
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch

__all__ = ["PRIVILEGED", "Policy"]

PRIVILEGED = ("length", "separators", "direction")  # what a method may be given beyond the text

_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Policy(TypedDataclass):
    """Base of the policies. A subclass defines `positions`.

    Attributes:
      axes: how many axes its positions have; None is one axis, without a leading dimension of the arrays.
      real: whether its positions are real numbers.
    """

    axes: ClassVar[int | None] = None
    real: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self).positions is Policy.positions:
            raise ValueError(f"{type(self).__name__} defines no positions; use a policy that does, such as Contiguous()")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        """The positions of the tokens of a batch.

        Args:
          keys: random keys [B], one for each example. A draw depends on the key and on the unpadded length of the example.
          batch: B examples.
        """
        raise TypeError(f"{type(self).__name__} defines no positions(keys, batch)")

    def check(self, task: Task, length: int) -> None:
        """Raises ValueError if the policy has no positions for examples of the task of up to `length` input positions."""
        if self.reach(length) > _MOST:
            raise ValueError(
                f"{type(self).__name__} would give positions up to {self.reach(length) - 1}, which is too large for int32; use "
                f"positions below {_MOST}"
            )

    def reach(self, length: int) -> int:
        """Positions of unpadded tokens are in 0 .. reach - 1, for examples of up to `length` input positions."""
        return length

    @property
    def privileged(self) -> tuple[str, ...]:
        """The privileged information that it uses, of PRIVILEGED: "length" (the whole example's, so the answer's), "separators"
        (which token separates the sections of a text), "direction" (in which direction the task reads the text: an oracle).
        """
        return ()


Draw = Callable[[jax.Array, jax.Array], jax.Array]


def positions_by_example(draw: Draw, keys: jax.Array, batch: Batch) -> Positions:
    """The positions of every example, drawn from its key for its length."""
    examples = batch.lengths.shape[0]
    keys = random.threefry(keys)
    if keys.shape != batch.lengths.shape:
        raise ValueError(
            f"keys must be one for each of the {examples} examples, got the shape {keys.shape}; use jax.random.split(key, "
            f"{examples})"
        )
    return Positions(query=jax.vmap(draw)(keys, batch.lengths), length=batch.lengths)


@dataclass(frozen=True, kw_only=True)
class DrawnPolicy(Policy):
    """Base of policies that draw from 0 .. max_position - 1 for the whole length of an example, and so know the answer's."""

    max_position: int

    def __post_init__(self) -> None:
        if self.max_position < 1:
            raise ValueError(f"{type(self).__name__} max_position must be at least 1, got {self.max_position}")

    def check(self, task: Task, length: int) -> None:
        super().check(task, length)
        if self.max_position < length:
            raise ValueError(
                f"{type(self).__name__} max_position={self.max_position} is below the {length} input positions of the longest "
                f"example of {task.name}; raise it to that, or leave out the longest lengths"
            )

    def reach(self, length: int) -> int:
        return self.max_position

    @property
    def privileged(self) -> tuple[str, ...]:
        return ("length",)
