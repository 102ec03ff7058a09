"""Rows and columns from separators (idea: arXiv:2607.16072)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from rope_jax.encoders import positions
from rope_jax.encoders.positions import Positions
from rope_jax.policies.base import Policy
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.formats import SEP

__all__ = ["Grid"]


@dataclass(frozen=True, kw_only=True)
class Grid(Policy):
    """The row and column of a token, from the separators in the text, as `positions.grid` (idea: arXiv:2607.16072).

    Attributes:
      separator: the token that begins a row; by default SEP of the tasks.
      order: "forward", or "snake", which reverses every second row and so knows the direction of the task: an oracle.
    """

    axes: ClassVar[int | None] = 2
    separator: int = SEP
    order: Literal["forward", "snake"] = "forward"

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        rows_and_columns = positions.grid(batch.tokens, separator=self.separator, order=self.order)
        return Positions(query=rows_and_columns, length=batch.lengths, axes=self.axes)

    def check(self, task: Task, length: int) -> None:
        if self.separator not in task.markers:
            raise ValueError(
                f"Grid separator={self.separator} is not a separator of {task.name}; the separators in every example are "
                f"{', '.join(f'{name}={token}' for token, name in task.markers.items())}"
            )

    @property
    def privileged(self) -> tuple[str, ...]:
        return ("separators", "direction") if self.order == "snake" else ("separators",)
