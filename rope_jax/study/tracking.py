"""The losses of a training in other programs, such as TensorBoard and Weights & Biases, beside the log in its own folder.

A new tracker is a subclass of `Tracker` and one line in `TRACKERS`. Each writes to `tracking/<name>` in the folder of a training.
A training that is resumed continues its curves.
"""

import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

FLUSH_SECONDS = 10.0  # what an event file may lag behind


class Tracker:
    """Takes the values of one training; this one drops them.

    Attributes:
      name: what a user calls it, and the name of its folder.
      library: the package that it needs.
    """

    name: ClassVar[str] = ""
    library: ClassVar[str] = ""

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start: int) -> None:
        """Begins to track.

        Args:
          folder: exists; for this tracker alone.
          run_name: what the curves are called.
          config: what is trained, of strings, numbers, lists and dicts.
          start: the step that is resumed from; what was tracked after it is replaced.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes values, such as {"loss": 0.5}, after a number of steps."""

    def close(self) -> None:
        """Writes what is left; nothing is logged after it."""


class TensorBoard(Tracker):
    """Event files for TensorBoard, by tensorboardX.

    They are written here and now. The `SummaryWriter` of tensorboardX writes in a thread; where that fails, as on a full disk,
    it blocks the training for good.
    """

    name = "tensorboard"
    library = "tensorboardX"

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.summary import text

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # TensorBoard drops what came after this step before
        self._file = EventsWriter(str(folder / "events"), filename_suffix=f".{uuid.uuid4().hex[:8]}")
        self._write(start, session_log=session)
        self._write(start, summary=text("config", f"    {json.dumps(config, indent=2).replace(chr(10), chr(10) + '    ')}"))
        self._file.flush()
        self._flushed = time.monotonic()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one event, and those that wait, if it is time."""
        self._write(step, summary=self._summary(value=[self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, step: int, **what: Any) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, **what))


class WandB(Tracker):
    """A run of Weights & Biases. Without the variable WANDB_MODE it is kept in the folder, for `wandb sync`."""

    name = "wandb"
    library = "wandb"

    def __init__(self, folder: Path, run_name: str, config: Mapping[str, Any], start: int) -> None:
        import wandb

        kept = folder / "run_id"  # by which Weights & Biases puts the parts of a training together
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex[:12])
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rope_jax"),
            id=kept.read_text(),
            resume="allow",
            name=run_name,
            config=dict(config),
            dir=folder.parent,  # it adds "wandb" itself
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # seeds that train together have a run each
            settings={"silent": True, "console": "off"},
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hands the values to the library, which drops steps that it has."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


TRACKERS: tuple[type[Tracker], ...] = (TensorBoard, WandB)


def require_trackers(names: Sequence[str]) -> None:
    """Raises ValueError if a name is unknown or its library is not installed."""
    known = {kind.name: kind for kind in TRACKERS}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no tracker {name!r}; there are {', '.join(known)}")
        library = known[name].library
        if importlib.util.find_spec(library) is None:
            raise ValueError(f"the tracker {name} needs {library}, which is not installed: pip install 'rope_jax[tracking]'")


@contextmanager
def trackers(
    names: Sequence[str],
    folder: Path,
    run_name: str,
    config: Mapping[str, Any],
    *,
    start: int = 0,
    report: Callable[[str], object] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Iterator[Tracker]:
    """Opens the trackers of a training, as one.

    An error of a tracker stops no training: it is reported once, and the training goes on without that tracker.

    Args:
      names: of TRACKERS; none for nothing.
      folder: of the training.
      run_name: what its curves are called, such as "copy, RoPE, seed 0".
      config: what is trained, of strings, numbers, lists and dicts.
      start: the step that is resumed from.
      report: takes the message about an error.

    Yields:
      A Tracker. It is closed at the end.

    Raises:
      ValueError: a name is unknown, or its library is not installed.
    """
    require_trackers(names)
    wanted = [kind for kind in TRACKERS if kind.name in names]
    with ExitStack() as stack:
        several = _Several(report)
        stack.callback(several.close)
        for kind in wanted:
            several.open(kind, folder / "tracking" / kind.name, run_name, config, start)
        yield several


class _Several(Tracker):
    """Trackers that work."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._open: dict[str, Tracker] = {}

    def open(self, kind: type[Tracker], folder: Path, run_name: str, config: Mapping[str, Any], start: int) -> None:
        """Adds a tracker."""
        with self._reported(kind.name):
            folder.mkdir(parents=True, exist_ok=True)
            self._open[kind.name] = kind(folder, run_name, config, start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hands the values to all."""
        for name, tracker in list(self._open.items()):
            with self._reported(name):
                tracker.log(step, values)

    def close(self) -> None:
        """Closes all."""
        for name, tracker in list(self._open.items()):
            with self._reported(name):
                tracker.close()

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Reports an error, and drops its tracker."""
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            reason = str(error).partition("\n")[0] or type(error).__name__
            self._report(f"note: tracking with {name} failed ({reason}); the training goes on without it")
