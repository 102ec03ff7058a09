"""How work is done, and who is told of it. Nothing here changes a result."""

from dataclasses import dataclass


class Watch:
    """What is told how the work goes; this one tells nobody."""

    def began(self, name: str, total: int, done: int = 0) -> None:
        """A piece of work began: training, counted in steps, or evaluation, counted in measurements of all its seeds."""

    def moved(self, done: int, status: str) -> None:
        """So much of it is done."""

    def ended(self) -> None:
        """It is done, or given up."""

    def finished(self, name: str) -> None:
        """All work on some trainings is done; their rows are written."""

    def said(self, text: str) -> None:
        """A remark for the user."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How work is done.

    Attributes:
      checkpoint_seconds: a checkpoint is written when this much time has passed since the last, and at the end of training.
      seeds_together: so many seeds of a cell are trained in one program at most; None is all that are missing.
      devices_per_seed: on how many devices the batch of a seed is split.
      trackers: names of `tracking.TRACKERS`, which are told the losses of each training.
    """

    checkpoint_seconds: float = 20.0
    seeds_together: int | None = None
    devices_per_seed: int = 1
    trackers: tuple[str, ...] = ()
