"""Position policies: which positions a batch's tokens are given, as a choice of the config beside the encoder.

A policy is data-side only: it turns a batch into `Positions` by the functions of `rope_jax.positions`, with a random key for each
example where it draws, at training and at test time alike. A new policy is one class here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from rope_jax import positions
from rope_jax.encoders.base import Positions
from rope_jax.encoders.checked import Checked
from rope_jax.tasks.base import SEP, Batch, Task

__all__ = ["Contiguous", "Grid", "PoSE", "Policy", "RandomFloat", "RandomOffset", "Randomized"]

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
    def presumes(self) -> tuple[str, ...]:
        """What it is told: "length" (the answer's), "separators" (the token that parts a text), "direction" (an oracle)."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Contiguous(Policy):
    """offset, offset + 1, ...: the usual ones.

    Attributes:
      offset: of the first token.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset < 0:
            raise ValueError(f"Contiguous offset must not be negative, got {self.offset}; 0 is the usual one")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        return Positions(query=positions.contiguous(batch.tokens.shape[-1], offset=self.offset), length=batch.lengths)

    def reach(self, length: int) -> int:
        return self.offset + length


Draw = Callable[[jax.Array, jax.Array], jax.Array]


def _each(draw: Draw, keys: jax.Array, batch: Batch) -> Positions:
    """Every example's positions, drawn from its own key for its own length."""
    examples = batch.lengths.shape[0]
    if keys.shape != batch.lengths.shape:
        raise ValueError(
            f"keys must be one for each of the {examples} examples, got {keys.shape}; use jax.random.split(key, {examples})"
        )
    return Positions(query=jax.vmap(draw)(keys, batch.lengths), length=batch.lengths)


@dataclass(frozen=True, kw_only=True)
class _Drawn(Policy):
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
    def presumes(self) -> tuple[str, ...]:
        return ("length",)


@dataclass(frozen=True, kw_only=True)
class RandomOffset(_Drawn):
    """One uniform offset an example, so that all rows of a table are trained; as `positions.random_offset`.

    Attributes:
      max_position: positions are from 0 to max_position - 1.
    """

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]
        return _each(lambda key, n: positions.random_offset(key, n, size, max_position=self.max_position), keys, batch)


@dataclass(frozen=True, kw_only=True)
class Randomized(_Drawn):
    """A sorted random subset of the positions, one an example (Ruoss et al. 2023, arXiv:2305.16843); as `positions.randomized`.

    Attributes:
      max_position: the subset is of 0 .. max_position - 1.
    """

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]
        return _each(lambda key, n: positions.randomized(key, n, size, max_position=self.max_position), keys, batch)


@dataclass(frozen=True, kw_only=True)
class PoSE(_Drawn):
    """Chunks with random skips between them (Zhu et al. 2024, arXiv:2309.10400); as `positions.pose`.

    The paper trains so and tests with contiguous positions, which is a variant: `Variant(policy=Contiguous(), ...)`.

    Attributes:
      max_position: positions are from 0 to max_position - 1.
      chunks: how many.
    """

    chunks: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunks < 1:
            raise ValueError(f"PoSE chunks must be at least 1, got {self.chunks}; the paper's is 2")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]
        return _each(lambda key, n: positions.pose(key, n, size, max_position=self.max_position, chunks=self.chunks), keys, batch)


@dataclass(frozen=True, kw_only=True)
class RandomFloat(Policy):
    """Sorted uniform reals, one draw an example (arXiv:2602.14050); as `positions.random_float`.

    Attributes:
      max_position: they lie in [0, max_position), however long the example.
    """

    real: ClassVar[bool] = True
    max_position: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.max_position < math.inf:
            raise ValueError(f"RandomFloat max_position must be positive and finite, got {self.max_position}")

    def positions(self, keys: jax.Array, batch: Batch) -> Positions:
        size = batch.tokens.shape[-1]
        return _each(lambda key, n: positions.random_float(key, n, size, max_position=self.max_position), keys, batch)

    def reach(self, length: int) -> int:
        return math.ceil(self.max_position)

    @property
    def presumes(self) -> tuple[str, ...]:
        return ("length",)


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
    def presumes(self) -> tuple[str, ...]:
        return ("separators", "direction") if self.order == "snake" else ("separators",)
