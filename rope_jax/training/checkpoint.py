"""Training states on disk, one folder a seed, by Orbax; whole or not at all, and with digests.

    FOLDER/<step>/state/        what Orbax writes
    FOLDER/<step>/SHA256SUMS    the digest of each of its files, as `sha256sum -c` reads them

A checkpoint is written as <step>.partial, flushed to the disk and renamed, so that a killed write leaves the last one in place.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rope_jax.encoders.base import Params
from rope_jax.study.config import Cell
from rope_jax.training import processes
from rope_jax.training.devices import replica_sharding
from rope_jax.training.train import TrainState, init_state

_PARTIAL = ".partial"
_DIGESTS = "SHA256SUMS"
_BYTES_OF_METADATA = 2**20
_WRITERS = 2
_FLUSHERS = 8


class DamagedCheckpointError(ValueError):
    """A checkpoint cannot be read; the message names its path and what to do."""


def save(folders: Sequence[Path], state: TrainState) -> None:
    """Writes each replica into the folder of its seed, as folder/<step>; then removes the older checkpoints there.

    Of several processes that are one program, all call it, and the main process writes.

    Args:
      folders: one for each replica; made if they do not exist.
      state: of all replicas, with a leading replica axis.

    Raises:
      OSError: one cannot be written, as on a full disk; the message names it. What was there before is still there.
    """
    state = processes.fetch(state)
    if processes.is_main():
        # most of the time is spent waiting, for threads of Orbax and for the disk
        with _quiet_orbax(), ThreadPoolExecutor(min(len(folders), _WRITERS)) as pool:
            replicas = [jax.tree.map(lambda x, i=i: x[i], state) for i in range(len(folders))]
            list(pool.map(_save_one, [folder.resolve() for folder in folders], replicas))
    processes.wait()


def latest_step(folder: Path) -> int | None:
    """The step of the last complete checkpoint, or None. Whatever else lies in the folder is left out.

    Raises:
      DamagedCheckpointError: the path is no folder.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise DamagedCheckpointError(f"{folder} is not a folder, and must be one; delete it, or move it away")
    return max(_steps(folder), default=None)


def load(folders: Sequence[Path], cell: Cell, *, devices_per_seed: int = 1) -> TrainState | None:
    """Reads the last complete checkpoints of a cell.

    Args:
      folders: one for each seed of the cell, where `save` wrote them.
      cell: what was trained.
      devices_per_seed: as in `train.fit`.

    Returns:
      The state, its replica axis spread over the present devices; None if there is no checkpoint.

    Raises:
      DamagedCheckpointError: a checkpoint cannot be read, or is not what was written.
      ValueError: the last checkpoints are not of the same step.
    """
    steps = [latest_step(folder) for folder in folders]
    if len(set(steps)) != 1:
        found = ", ".join(f"{folder}: {'none' if step is None else step}" for folder, step in zip(folders, steps, strict=True))
        raise ValueError(f"checkpoints must have the same last step to be trained on together, got {found}; load them apart")
    if steps[0] is None:
        return None
    states = [_read(folder, steps[0], cell) for folder in folders]
    return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *states), replica_sharding(len(folders), devices_per_seed))


def load_params(folder: Path, cell: Cell) -> Params | None:
    """The parameters in the last complete checkpoint of one seed, without a replica axis; None if there is no checkpoint.

    Raises:
      DamagedCheckpointError: it cannot be read, or is not what was written.
    """
    step = latest_step(folder)
    return None if step is None else jax.tree.map(jnp.asarray, _read(folder, step, cell).params)


def _steps(folder: Path) -> list[int]:
    """The steps of all checkpoints of ours in a folder."""
    return [int(path.name) for path in _folders(folder) if re.fullmatch(r"0|[1-9][0-9]*", path.name)]


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _save_one(folder: Path, state: TrainState) -> None:
    """Writes the checkpoint of one replica, given as host arrays without a replica axis."""
    target = folder / str(int(state.step))
    partial = target.with_name(target.name + _PARTIAL)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # of a killed write
        # asked first, because threads of Orbax print what they meet on a full disk
        if shutil.disk_usage(folder).free < (needed := sum(x.nbytes for x in jax.tree.leaves(state)) + _BYTES_OF_METADATA):
            raise OSError(errno.ENOSPC, f"it needs {needed:,} bytes, and the disk is full")
        _checkpointer().save(partial / "state", args=ocp.args.StandardSave(state))
        (partial / _DIGESTS).write_text(_digests(partial / "state"))
        with ThreadPoolExecutor(_FLUSHERS) as pool:  # the system writes down together what is flushed together
            list(pool.map(_flush, (partial, *partial.rglob("*"))))
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _flush(folder)
    except (OSError, ValueError) as error:  # a ValueError is what Orbax makes of errors of its storage
        shutil.rmtree(partial, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        raise OSError(f"checkpoint {target} cannot be written ({reason})") from error
    for path in _folders(folder):
        if re.fullmatch(rf"(0|[1-9][0-9]*)({_PARTIAL})?", path.name) and path != target:
            shutil.rmtree(path, ignore_errors=True)


def _read(folder: Path, step: int, cell: Cell) -> TrainState:
    """The state of one seed, as host arrays without a replica axis."""
    path = folder.resolve() / str(step)
    try:
        if (path / _DIGESTS).read_text() != _digests(path / "state"):
            raise ValueError("its files are not those that were written")
        shapes = jax.eval_shape(lambda seed: init_state(seed, cell), jnp.uint32(0))
        return _checkpointer().restore(path / "state", args=ocp.args.StandardRestore(shapes))
    except Exception as error:  # Orbax raises errors of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DamagedCheckpointError(
            f"checkpoint {path} cannot be read ({reason}); delete it to train again from the beginning"
        ) from error


def _checkpointer() -> Any:
    """One that is done when it returns, and waits for no other process."""
    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"process {this}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """A context without the log of Orbax, whose threads print the traceback of an error that it raises as well."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _digests(folder: Path) -> str:
    """The SHA-256 of every file below a folder, a line each."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            lines.append(f"{digest}  {path.relative_to(folder.parent).as_posix()}\n")
    return "".join(lines)


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
