"""The store: a folder of trainings and of what was measured on them. Every file is written whole or not at all.

DIR/study.json                    the number of this layout
DIR/sessions/<session>.jsonl      what did work: a record of the session, then a line for each piece of its work
DIR/trainings/<name>/             one training: a task, a method, settings and one seed (see `Cell.training_name`)
    training.json                 what is trained
    log.jsonl                     a line for each chunk of training
    checkpoint/                   the last training state (see `training.checkpoint`)
    rows-<hash>.jsonl             the rows of some measurements, named after them
    failed.json                   why it failed, if it did
    lock                          locked by the process that works on it
DIR/rows.jsonl                    the rows that the last report shows (see `gather`)

Names follow from content alone, so that folders are merged by copying one into the other. A measurement is there when its row is:
in the folder of its training or, where DIR/trainings does not exist, in DIR/rows.jsonl. Thus a training whose folder is deleted
runs again, and DIR/study.json and DIR/rows.jsonl alone are enough to open finished results elsewhere.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.study.config import Cell, training_name
from rope_jax.study.files import DamagedError, lock, misplaced, read_object, read_rows, temporary_folder, to_lines, write_whole
from rope_jax.study.rows import Row, digest
from rope_jax.study.serialization import to_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LAYOUT = 3  # 1 and 2 held one experiment in a folder: run.json and cells/
_FAILED = "failed.json"
_FOLDERS = ("trainings", "sessions")
_MARKS = ("study.json", *_FOLDERS)  # one of them shows that a folder holds a study
_ROWS = re.compile(r"rows-[0-9a-f]{10}\.jsonl")


@dataclass(frozen=True)
class TrainingFolder:
    """The folder of one training. It need not exist."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where the training state is kept."""
        return self.path / "checkpoint"

    @property
    def log_path(self) -> Path:
        """The training log."""
        return self.path / "log.jsonl"

    def measured(self) -> dict[str, Row]:
        """The rows that are there, by the identity of their measurement.

        Raises:
          DamagedError: a file of rows is damaged.
        """
        found: dict[str, Row] = {}
        for path in self.row_files():
            for row in read_rows(path):
                require_intact(row, str(path))
                if not self.path.name.endswith(row["training"]):
                    raise DamagedError(f"{path} holds a row of the training {row['training']}, another one; delete the file")
                found[row["measurement"]] = row
        return found

    def holds(self, measurements: frozenset[str]) -> bool:
        """Whether all of some measurements are there, by the name of their file where one has exactly these, else by reading."""
        if (self.path / _rows_name(measurements)).is_file():
            return True
        return bool(self.row_files()) and measurements <= self.measured().keys()

    def failure(self) -> str | None:
        """Why the training failed; None if it did not."""
        path = self.path / _FAILED
        if not path.exists():
            return None
        return str(read_object(path).get("reason", f"{path} holds no reason; delete it to try the training again"))

    def start(self, cell: Cell, seed: int, step: int) -> None:
        """Writes what is trained, and cuts the log of an earlier session back to `step`, where training continues."""
        trained = {name: to_json(value) for name, value in _trained(cell).items()}
        write_whole(self.path / "training.json", json.dumps({**trained, "seed": seed}, indent=1) + "\n")
        kept = []
        for line in self.log_path.read_bytes().splitlines() if self.log_path.exists() else []:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):  # killed while it was written, or damaged
                entry = json.loads(line)
                if entry["step"] <= step:
                    kept.append(entry)
        write_whole(self.log_path, to_lines(kept))

    def log(self, entry: Row) -> None:
        """Adds a line to the training log."""
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(to_lines([entry]))

    def finish(self, rows: list[Row]) -> None:
        """Writes the rows of some measurements, which are there from now on, and forgets an earlier failure."""
        write_whole(self.path / _rows_name(row["measurement"] for row in rows), to_lines(rows))
        self.forgive()

    def fail(self, reason: str, **details: Any) -> None:
        """Records that the training, or its evaluation, failed."""
        write_whole(self.path / _FAILED, json.dumps({"reason": reason, **details}, indent=1) + "\n")

    def forgive(self) -> None:
        """Forgets a failure, so that the training is tried again."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / _FAILED).unlink()

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Makes the folder and locks it against other processes, of any host; yields whether this succeeded.

        The system unlocks it when this process ends, however it ends. Where a file system has no locks, the lock is not kept; two
        processes may then compute the same, with the same results.

        Raises:
          DamagedError: something else is in the place of the folder or of its lock.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise misplaced(error) or error from error
        try:
            yield _lock(handle)
        finally:
            os.close(handle)

    def last_owner(self) -> str:
        """The process that worked on it last, as "host:process"; "" if none did."""
        try:
            return (self.path / "lock").read_bytes()[:300].decode(errors="replace").strip()
        except OSError:
            return ""

    def owner(self) -> str | None:
        """The process that works on it now, as "host:process"; None if there is none."""
        if fcntl is None:
            return None
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return self.last_owner() or "another process"
        except OSError:  # the file system has no locks
            return None
        finally:
            os.close(handle)

    def last_entry(self) -> Row:
        """The last whole line of the training log; {} if there is none."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - 1000))
                lines = file.read().splitlines()
        except OSError:
            return {}
        for line in reversed(lines):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(entry := json.loads(line), dict):
                    return entry
        return {}

    def row_files(self) -> list[Path]:
        """The files of rows, in the order of their names.

        Raises:
          DamagedError: the folder cannot be read, since it is a link to itself.
        """
        try:
            return sorted(path for path in self.path.iterdir() if _ROWS.fullmatch(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise misplaced(error) or error from error


def _trained(cell: Cell) -> dict[str, Any]:
    """What a training is made from, besides its seed."""
    method = cell.method
    return {"task": cell.task, "encoder": method.encoder, "policy": method.policy, "model": cell.model, "train": cell.train}


def _rows_name(measurements: Iterable[str]) -> str:
    names = ",".join(sorted(measurements))
    return f"rows-{hashlib.sha256(names.encode()).hexdigest()[:10]}.jsonl"


def _lock(handle: int) -> bool:
    """Locks an open file and writes this process into it; False if another process has locked it."""
    try:
        if not lock(handle):
            return False  # another process works on it, or looks at it; who waits for it comes again
    except OSError:  # the file system has no locks
        pass
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.uname().nodename if hasattr(os, 'uname') else 'here'}:{os.getpid()}\n".encode(), 0)
    return True


def require_intact(row: Row, where: str) -> None:
    """Raises DamagedError unless a row has what every row has, and the digest of its content."""
    if not all(isinstance(row.get(name), str) for name in ("training", "measurement")) or row.get("digest") != digest(row):
        raise DamagedError(
            f"{where} holds a row that was changed or damaged: its digest is {row.get('digest')}, and that of its content "
            f"{digest(row)}; delete the file to have its rows made again"
        )


@dataclass
class Session:
    """The file of one process that does work in a store."""

    path: Path
    record: Row

    def note(self, work: Row) -> None:
        """Adds a piece of work; the first one makes the file, with the record of the session."""
        lines = [work] if self.path.exists() else [self.record, work]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_lines(lines))


class Store:
    """A folder of trainings; `open_store` opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def trainings(self) -> Path:
        """The folder of the trainings."""
        return self.path / "trainings"

    def training(self, cell: Cell, seed: int) -> TrainingFolder:
        """The folder of the training of a seed."""
        return TrainingFolder(self.trainings / cell.training_name(seed))

    def measured(self, cell: Cell, seed: int) -> dict[str, Row]:
        """The rows of a training, by the identity of their measurement.

        Raises:
          DamagedError: a file of rows is damaged.
        """
        if self._alone is not None:
            return self._alone.get(cell.training(seed), {})
        return self.training(cell, seed).measured()

    def holds(self, cell: Cell, seed: int, measurements: frozenset[str]) -> bool:
        """Whether all of some measurements of a training are there; quicker than `measured`, which reads them."""
        if self._alone is not None:
            return measurements <= self.measured(cell, seed).keys()
        return self.training(cell, seed).holds(measurements)

    @functools.cached_property
    def _alone(self) -> dict[str, dict[str, Row]] | None:
        """The rows of DIR/rows.jsonl, by the identities of training and measurement, where DIR/trainings does not exist.

        Those of failures are left out.
        """
        if self.trainings.exists():
            return None
        path = self.path / "rows.jsonl"
        found: dict[str, dict[str, Row]] = {}
        for row in read_rows(path) if path.exists() else []:
            if row.get("status") != "failed":
                require_intact(row, str(path))
                found.setdefault(row["training"], {})[row["measurement"]] = row
        return found

    def begin(self) -> None:
        """Prepares the folder for changes: notes the layout and, where rows.jsonl is alone, files its rows in trainings."""
        write_whole(self.path / "study.json", json.dumps({"layout": LAYOUT}) + "\n")
        if self._alone is None:
            return
        if not self._alone:
            self.trainings.mkdir(exist_ok=True)
            del self._alone
            return
        with temporary_folder(self.path, "trainings") as folder:
            filed = Store(folder)
            filed.trainings.mkdir()
            for rows in self._alone.values():
                filed._folder_of(next(iter(rows.values()))).finish(list(rows.values()))
            try:
                os.rename(filed.trainings, self.trainings)
            except OSError:
                if not self.trainings.is_dir():  # else another process was first
                    raise
        del self._alone

    def take(self, other: "Store", cell: Cell, seed: int) -> bool:
        """Copies what another store has of a training and this one has not; whether there was anything."""
        source, target = other.training(cell, seed), self.training(cell, seed)
        if not source.path.is_dir():
            rows = list(other.measured(cell, seed).values())
            if rows and not target.holds(frozenset(row["measurement"] for row in rows)):
                target.finish(rows)
                return True
            return False
        if target.path.exists():
            missing = [path for path in source.row_files() if not (target.path / path.name).exists()]
            for path in missing:
                write_whole(target.path / path.name, path.read_bytes())
            return bool(missing)
        with temporary_folder(self.path, "taken") as folder:
            copy = folder / source.path.name
            shutil.copytree(source.path, copy, ignore=shutil.ignore_patterns("lock", _FAILED, ".*"))
            os.rename(copy, target.path)
        return True

    def _folder_of(self, row: Row) -> TrainingFolder:
        """The folder of the training that a row belongs to."""
        name = training_name(row["task"], row["encoder"], row["policy"], row["seed"], row["training"])
        return TrainingFolder(self.trainings / name)


def open_store(path: Path, *, to_write: bool = True) -> Store:
    """Opens the folder of a study, which need not exist. Nothing is written before `Store.begin`.

    Args:
      path: the folder.
      to_write: whether to make sure that it can be written.

    Raises:
      ValueError: path names a file, holds other files or an earlier layout, or cannot be written. Nothing is changed then.
    """
    try:
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give a folder, which need not exist")
        if path.exists():
            _require_store(path)
        if to_write:
            with _made(path), tempfile.TemporaryFile(dir=path):
                pass  # a folder that exists may still refuse files
    except OSError as error:
        raise ValueError(f"The folder {path} cannot be written ({error.strerror}); give a folder that can") from error
    return Store(path)


def read_store(path: Path) -> Store:
    """Opens the folder of a study for reading; ValueError unless it is one."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give the folder of a study")
    _require_store(path)
    if not any((path / name).exists() for name in _MARKS):
        raise ValueError(f"The folder {path} holds no study; give the folder that was --out of a run")
    return Store(path)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[None]:
    """Makes a folder and those above it; in the end, removes those of them that it made and that are empty."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it was never made, or another process uses it
                folder.rmdir()


def _require_store(path: Path) -> None:
    """Raises ValueError unless a folder is empty or holds a study of this layout. Hidden files are left alone."""
    record = path / "study.json"
    if record.exists():
        layout = read_object(record).get("layout")
        if layout != LAYOUT:
            raise ValueError(f"{record} says layout {layout!r}, and this version reads layout {LAYOUT}; give another folder")
    elif (path / "run.json").exists() or (path / "cells").exists():
        raise ValueError(
            f"The folder {path} was written by an earlier version, which held one experiment in a folder (run.json, cells/). "
            f"Convert it: python -m experiments.convert {shlex.quote(str(path))} --out NEW; or give another folder"
        )
    for name in _FOLDERS:
        if os.path.lexists(path / name) and not (path / name).is_dir():
            raise ValueError(f"{path / name} is not a folder, and must be one; delete it, or move it away")
    if not any((path / name).exists() for name in _MARKS) and any(not each.name.startswith(".") for each in path.iterdir()):
        raise ValueError(f"The folder {path} holds other files and no study.json; give a new or empty folder")
