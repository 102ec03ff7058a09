"""The run store: one folder an experiment, one folder a cell, every file written whole or not at all.

DIR/run.json                  the experiment, and for every session that did work: command, commit, versions, devices, date
DIR/cells/<id>/config.json    the cell
               metrics.jsonl  a line a chunk of training
               checkpoint/    the last state (see `checkpoint`)
               rows.jsonl     written last: a cell that has it is finished
DIR/rows.jsonl                the rows of all cells
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rope_jax.study.config import Cell, Experiment
from rope_jax.study.serialization import content_hash, differences, to_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]


class DamagedError(ValueError):
    """A file of an earlier session cannot be read; the message names it and the remedy."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all; a file that already says the same is left alone."""
    content = data.encode() if isinstance(data, str) else data
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def to_lines(rows: Iterable[Row]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Reads JSON lines; DamagedError that names file and line if one is broken."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DamagedError(f"{path}:{number} is not a line of JSON ({error}); delete the file to have it rebuilt") from error
    return rows


@dataclass(frozen=True)
class CellFolder:
    """One cell's folder."""

    path: Path

    @property
    def rows_path(self) -> Path:
        """The file whose presence says that the cell is finished."""
        return self.path / "rows.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Where the training state is kept."""
        return self.path / "checkpoint"

    @property
    def finished(self) -> bool:
        """Whether the cell is trained and evaluated."""
        return self.rows_path.exists()

    def start(self, cell: Cell, step: int) -> None:
        """Writes the config, and cuts a training log of an earlier session back to `step`, where training goes on."""
        write_whole(self.path / "config.json", json.dumps(to_json(cell), indent=1) + "\n")
        log = self.path / "metrics.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # a killed session may have left a part of a line
        write_whole(log, "".join(line for line in whole if json.loads(line)["step"] <= step))

    def log(self, metrics: Row) -> None:
        """Adds a line to the training log."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(to_lines([metrics]))

    def finish(self, rows: list[Row]) -> None:
        """Writes the rows; from then on the cell is finished."""
        write_whole(self.rows_path, to_lines(rows))


@dataclass(frozen=True)
class RunFolder:
    """One experiment's folder; `open_run` makes it."""

    path: Path
    experiment: Experiment

    def cell(self, cell: Cell) -> CellFolder:
        """The folder of a cell."""
        return CellFolder(self.path / "cells" / cell.id)

    def unfinished(self) -> list[Cell]:
        """The cells that are still to be run."""
        return [cell for cell in self.experiment.cells() if not self.cell(cell).finished]

    def note_session(self, session: Row) -> None:
        """Adds what is about to run cells to run.json."""
        path = self.path / "run.json"
        run = json.loads(path.read_text())
        write_whole(path, json.dumps(run | {"sessions": [*run["sessions"], session]}, indent=1) + "\n")

    def rows(self) -> list[Row]:
        """Gathers the rows of all cells, which must be finished, into DIR/rows.jsonl."""
        gathered = [row for cell in self.experiment.cells() for row in read_rows(self.cell(cell).rows_path)]
        write_whole(self.path / "rows.jsonl", to_lines(gathered))
        return gathered


@contextlib.contextmanager
def open_run(path: Path, experiment: Experiment) -> Iterator[RunFolder]:
    """Opens or makes the folder of an experiment, and holds it for this process until the end of the `with`.

    Raises:
      ValueError: path names a file, holds another experiment or other things, is held by another process, or cannot be
        written. Nothing is changed then.
    """
    with contextlib.ExitStack() as stack:
        try:
            _require_usable(path, experiment)
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_held(path))
            with tempfile.TemporaryFile(dir=path):
                pass  # an existing folder may still refuse files
            if not (path / "run.json").exists():
                run = {"experiment": to_json(experiment), "hash": content_hash(experiment), "sessions": []}
                write_whole(path / "run.json", json.dumps(run, indent=1) + "\n")
        except OSError as error:
            raise ValueError(f"--out {path} cannot be written ({error.strerror}); give a folder that can") from error
        yield RunFolder(path, experiment)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keeps other processes of ours out of a folder, where the system has such locks."""
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ValueError(f"--out {path} is being written by another process; wait for it, or give another") from error
    finally:
        os.close(handle)


def _require_usable(path: Path, experiment: Experiment) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out {path} names a file; give a folder, which may be new")
    record = path / "run.json"
    if record.exists():
        _require_same(path, record, experiment)
    elif path.exists() and any(path.iterdir()):
        raise ValueError(f"--out {path} holds other files and no run.json; give a new or empty folder")


def _require_same(path: Path, record: Path, experiment: Experiment) -> None:
    try:
        run = json.loads(record.read_text())
        there, found = run["hash"], run["experiment"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{record} is not a record of a run ({error!r}); give a new --out") from error
    if there != content_hash(experiment):
        changed = [f"{name} is {old!r} there and {new!r} here" for name, old, new in differences(found, to_json(experiment))]
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ValueError(
            f"--out {path} holds another experiment: {'; '.join(changed[:3])}{more}. Give another --out, or delete that folder "
            "to start over"
        )


def provenance(command: str, cells: Sequence[Cell], devices: Sequence[str]) -> Row:
    """What ran: command, date (UTC), commit of this code, versions, machine, devices and the cells it was to run."""
    packages = ("rope_jax", "jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint")
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "machine": {"system": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()},
        "devices": list(devices),
        "cells": [cell.id for cell in cells],
    }


def _commit() -> str | None:
    """The git commit of this package's source, "-dirty" behind it if that was changed since; None outside a checkout."""

    def git(*command: str) -> str:
        here = Path(__file__).resolve()
        found = subprocess.run(["git", "-C", str(here.parent), *command], capture_output=True, text=True, check=True)
        return found.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie in somebody else's repository
        return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return None
