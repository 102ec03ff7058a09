"""How training is asked to stop: a command passes its own object, a notebook none."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class StopRequest(Protocol):
    """Whether work is to stop, read by what trains and evaluates."""

    @property
    def requested(self) -> bool:
        """Whether to stop as soon as what is worth keeping is saved."""

    def check(self) -> None:
        """Raises an exception, such as KeyboardInterrupt, if to stop."""

    def deferred(self) -> AbstractContextManager[None]:
        """Inside it a request raises nothing, so that a chunk can be finished and saved; both ends of it call `check`."""


class Stop:
    """A `StopRequest` that never comes."""

    requested = False

    def check(self) -> None:
        """Does nothing."""

    def deferred(self) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()
