"""The run store: one folder for an experiment, in it one folder for each cell. Every file is written whole or not at all.

DIR/run.json                  the experiment, and for every session that did work: command, commit, versions, devices, date
DIR/cells/<id>/config.json    the cell
               metrics.jsonl  a line for each chunk of training
               checkpoint/    the last training state (see `checkpoint`)
               rows.jsonl     the cell's rows, written last
DIR/rows.jsonl                the rows of all cells

A cell is finished when its rows are in its folder; where DIR/cells does not exist, when all of them are in DIR/rows.jsonl. Thus a
cell whose folder is deleted runs again, and DIR/run.json and DIR/rows.jsonl alone are enough to open finished results elsewhere.
"""

import contextlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rope_jax.encoders._internal.inputs import shown
from rope_jax.study.config import Cell, Experiment
from rope_jax.study.rows import Row
from rope_jax.study.serialization import SCHEMA, content_hash, differences, identity, to_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class DamagedError(ValueError):
    """A file of an earlier session cannot be read; the message names it and the remedy."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Writes a file so that it is there whole or not at all; a file that already has this content is left alone."""
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
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # an error of a write does not say of which file
        raise


def to_lines(rows: Iterable[Row]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Reads JSON lines.

    Raises:
      DamagedError: a line is not a JSON object; the message names file and line.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is {type(row).__name__}, not an object")
        except ValueError as error:  # wrong JSON, or bytes that are not UTF-8
            raise DamagedError(
                f"{path}:{number} is not a line of JSON ({error}); delete the file to have it made again"
            ) from error
        rows.append(row)
    return rows


@dataclass(frozen=True)
class CellFolder:
    """One cell's folder."""

    path: Path

    @property
    def rows_path(self) -> Path:
        """The cell's rows; the file is there only when the cell is trained and evaluated."""
        return self.path / "rows.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Where the training state is kept."""
        return self.path / "checkpoint"

    def start(self, cell: Cell, step: int) -> None:
        """Writes the config, and cuts the training log of an earlier session back to `step`, where training continues."""
        write_whole(self.path / "config.json", json.dumps(to_json(cell), indent=1) + "\n")
        log = self.path / "metrics.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # a session that was killed may have left half a line
        write_whole(log, "".join(line for line in whole if json.loads(line)["step"] <= step))

    def log(self, metrics: Row) -> None:
        """Adds a line to the training log."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_lines([metrics]))

    def finish(self, rows: list[Row]) -> None:
        """Writes the rows. The cell is then finished."""
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
        gathered = self._gathered()
        return [cell for cell in self.experiment.cells() if self._rows(cell, gathered) is None]

    def note_session(self, session: Row) -> None:
        """Adds a session that is about to run cells to run.json, and writes the experiment there as this version names it.

        The first session makes run.json.
        """
        path = self.path / "run.json"
        run = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"sessions": []}
        record = run | _record(self.experiment) | {"sessions": [*run["sessions"], session]}
        write_whole(path, json.dumps(record, indent=1) + "\n")

    def rows(self) -> list[Row]:
        """Gathers the rows of all cells, which must be finished, into DIR/rows.jsonl.

        The column "method" holds the current name of the method, also where the rows were measured under an earlier name.
        """
        gathered, rows = self._gathered(), []
        for cell in self.experiment.cells():
            of_cell = self._rows(cell, gathered)
            if of_cell is None:
                raise ValueError(f"cell {cell.id} in {self.path} is not finished; run it before its rows are gathered")
            rows += [row | {"method": cell.method.label} for row in of_cell]
        write_whole(self.path / "rows.jsonl", to_lines(rows))
        return rows

    def _gathered(self) -> dict[str, list[Row]]:
        """The rows in DIR/rows.jsonl, by the hash of their cell."""
        path = self.path / "rows.jsonl"
        by_cell: dict[str, list[Row]] = {}
        for row in read_rows(path) if path.exists() else []:
            by_cell.setdefault(row.get("cell", ""), []).append(row)
        return by_cell

    def _rows(self, cell: Cell, gathered: dict[str, list[Row]]) -> list[Row] | None:
        """A cell's rows, from its folder or, without DIR/cells, from DIR/rows.jsonl; None if it is not finished."""
        if (self.path / "cells").exists():
            path = self.cell(cell).rows_path
            return read_rows(path) if path.exists() else None
        rows = gathered.get(cell.hash, [])
        variants = [variant.name for variant in cell.method.all_variants]
        expected = set(itertools.product(variants, cell.seeds, cell.evaluate.lengths))
        return rows if {(row["variant"], row["seed"], row["length"]) for row in rows} == expected else None


def _record(experiment: Experiment) -> Row:
    """What run.json says of an experiment: every option, for people, and its identity, by which folders are compared."""
    return {
        "schema": SCHEMA,
        "hash": content_hash(experiment),
        "identity": identity(experiment),
        "experiment": to_json(experiment),
    }


@contextlib.contextmanager
def open_run(path: Path, experiment: Experiment) -> Iterator[RunFolder]:
    """Opens or makes the folder of an experiment, and locks it for this process until the end of the `with`.

    A folder may be opened again with an experiment of the same identity: names may differ, and options may have been added since.
    Nothing is written in the folder before `RunFolder.note_session`; a folder in which nothing was written is removed again if
    this made it.

    Raises:
      ValueError: path names a file, holds a different experiment or other files, is locked by another process, or cannot be
        written. Nothing is changed then.
    """
    with contextlib.ExitStack() as stack:
        try:
            _require_usable(path, experiment)
            stack.enter_context(_made(path))
            stack.enter_context(_locked(path))
            with tempfile.TemporaryFile(dir=path):
                pass  # an existing folder may still refuse files
        except OSError as error:
            raise ValueError(f"The folder {path} cannot be written ({error.strerror}); give a folder that can") from error
        yield RunFolder(path, experiment)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[None]:
    """Makes a folder and those above it; in the end, removes those of them that are empty."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it has content, or was never made
                folder.rmdir()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks a folder against other processes that call this, on systems that have such locks."""
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ValueError(f"The folder {path} is in use by another process; wait for it, or give another folder") from error
    finally:
        os.close(handle)


def _require_usable(path: Path, experiment: Experiment) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give a folder, which need not exist")
    record = path / "run.json"
    if record.exists():
        _require_same(path, record, experiment)
    elif path.exists() and any(path.iterdir()):
        raise ValueError(f"The folder {path} holds other files and no run.json; give a new or empty folder")


def _require_same(path: Path, record: Path, experiment: Experiment) -> None:
    """Raises ValueError unless the experiment that run.json records has the identity of this one."""
    try:
        run = json.loads(record.read_text(encoding="utf-8"))
        schema, recorded, all_recorded = run.get("schema", 1), run.get("identity"), run["experiment"]
    except (ValueError, KeyError, AttributeError) as error:  # wrong JSON, bytes that are not UTF-8, or another content
        raise ValueError(f"{record} is not the record of a run ({error!r}); give another folder") from error
    if schema != SCHEMA:
        raise ValueError(
            f"The folder {path} was written under schema {schema}, and this version continues schema {SCHEMA} only; give another "
            "folder"
        )
    decisive = [name for name, _, _ in differences(recorded, identity(experiment))]
    if decisive:
        changed = [
            f"{name} is {shown(old)} there and {shown(new)} here"
            for name, old, new in differences(all_recorded, to_json(experiment))
            if any(name.startswith(path) or path.startswith(name) for path in decisive)
        ]
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        raise ValueError(
            f"The folder {path} holds a different experiment: {'; '.join(changed[:3])}{more}. Give another folder, or "
            "delete this one to start again"
        )
