"""Position policies: which positions a batch's tokens are given, as a choice of the config beside the encoder.

A policy is data-side only: it turns a batch into `Positions` by the functions of `rope_jax.positions`, with a random key for each
example where it draws, at training and at test time alike. A new policy is one class here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax

from rope_jax.encoders._internal.typed_dataclass import Checked
from rope_jax.encoders.positions import Positions
from rope_jax.tasks.base import Batch, Task

__all__ = ["PRIVILEGED", "Policy"]

PRIVILEGED = ("length", "separators", "direction")  # what a method may be given beyond the text

_MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Policy(Checked):
    """Base of the policies.

    Attributes:
      axes: how many axes its positions have; None for the usual one.
      real: whether they are real numbers.
    """

    axes: ClassVar[int | None] = None
    real: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self).positions is Policy.positions:
            raise ValueError(f"{type(self).__name__} gives no positions; choose a policy that does, such as Contiguous()")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        """Where the tokens of a batch stand.

        Args:
          keys: random keys [B], one an example; the draw depends on the key and the example's own length, not on its padding.
          batch: of B examples.
        """
        raise TypeError(f"{type(self).__name__} defines no positions(keys, batch)")

    def check(self, task: Task, length: int) -> None:
        """Raises ValueError if it has no positions for the task's examples of up to `length` input positions."""
        if self.reach(length) > _MOST:
            raise ValueError(
                f"{type(self).__name__} would give positions up to {self.reach(length) - 1}, which int32 does not hold; keep "
                f"below {_MOST}"
            )

    def reach(self, length: int) -> int:
        """Positions of an example's own tokens lie in 0 .. reach - 1, for up to `length` input positions."""
        return length

    @property
    def privileged(self) -> tuple[str, ...]:
        """The privileged information that it uses, of PRIVILEGED: "length" (the whole example's, so the answer's), "separators"
        (which token separates the sections of a text), "direction" (in which direction the task reads the text: an oracle).
        """
        return ()


Draw = Callable[[jax.Array, jax.Array], jax.Array]


def positions_by_example(draw: Draw, keys: jax.Array, batch: Batch) -> Positions:
    """Every example's positions, drawn from its own key for its own length."""
    examples = batch.lengths.shape[0]
    if keys.shape != batch.lengths.shape:
        raise ValueError(
            f"keys must be one for each of the {examples} examples, got {keys.shape}; use jax.random.split(key, {examples})"
        )
    return Positions(query=jax.vmap(draw)(keys, batch.lengths), length=batch.lengths)


@dataclass(frozen=True, kw_only=True)
class DrawnPolicy(Policy):
    """Base of those that draw from 0 .. max_position - 1, for an example's whole length: that of the answer is known to them."""

    max_position: int

    def __post_init__(self) -> None:
        super().__post_init__()
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
