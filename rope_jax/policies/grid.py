"""Rows and columns read off the separators (idea: arXiv:2607.16072)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import Policy
from rope_jax.tasks.base import SEP, Batch, Task

__all__ = ["Grid"]


@dataclass(frozen=True, kw_only=True)
class Grid(Policy):
    """(row, column), read off the separators among the tokens (idea: arXiv:2607.16072); as `positions.grid`.

    Attributes:
      separator: the token that begins a row; the tasks' SEP unless said otherwise.
      order: "forward", or "snake", which turns every second row round and so knows the task's direction: an oracle.
    """

    axes: ClassVar[int | None] = 2
    separator: int = SEP
    order: Literal["forward", "snake"] = "forward"

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        at = positions.grid(batch.tokens, separator=self.separator, order=self.order)
        return Positions(query=at, length=batch.lengths, axes=self.axes)

    def check(self, task: Task, length: int) -> None:
        if self.separator not in task.markers:
            raise ValueError(
                f"Grid separator={self.separator} does not part what a model reads of {task.name}; the tokens that do, in every "
                f"example, are {', '.join(f'{name}={token}' for token, name in task.markers.items())}"
            )

    @property
    def privileged(self) -> tuple[str, ...]:
        return ("separators", "direction") if self.order == "snake" else ("separators",)
