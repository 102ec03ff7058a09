"""One cell from its config to its rows: trained from the beginning or from its last checkpoint, then evaluated."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rope_jax.study.config import Cell
from rope_jax.study.store import CellFolder, DamagedError
from rope_jax.training import checkpoint
from rope_jax.training.evaluate import check_evaluation, evaluate
from rope_jax.training.train import TrainState, fit


def display() -> Progress:
    """A progress bar on stderr with loss, speed and time left; nothing where stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),  # names may hold brackets
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def run_cell(
    cell: Cell, folder: CellFolder, progress: Progress, title: str, checkpoint_seconds: float, check: Callable[[], None]
) -> None:
    """Runs what is left to do of a cell, as its folder records. `check` is called often, and may raise an exception to stop."""
    check_evaluation(cell)  # an error of a metric, say, comes before minutes of training
    state = _train(cell, folder, progress, title, checkpoint_seconds, check)
    variants, lengths = len(cell.method.all_variants), len(cell.evaluate.lengths)
    bar = progress.add_task(f"{title} evaluating", total=variants * lengths, status="")
    rows: list[dict[str, Any]] = []
    for of_length in evaluate(cell, state.params, np.asarray(state.diverged_at)):
        check()
        rows += of_length
        progress.update(bar, advance=1)
    progress.remove_task(bar)
    names = [variant.name for variant in cell.method.all_variants]
    # all lengths of a seed together, in the order of the config
    folder.finish(sorted(rows, key=lambda row: (names.index(row["variant"]), cell.seeds.index(row["seed"]))))
    # each compiled program holds memory maps, of which a process may have 65,530; without this some 20 cells used them up
    jax.clear_caches()


def _train(
    cell: Cell, folder: CellFolder, progress: Progress, title: str, checkpoint_seconds: float, check: Callable[[], None]
) -> TrainState:
    """Trains from the last checkpoint, or from the beginning."""
    folders = [folder.checkpoints / str(seed) for seed in cell.seeds]
    try:
        state = checkpoint.load(folders, cell)
    except checkpoint.DamagedCheckpointError as error:
        raise DamagedError(str(error)) from error
    start = 0 if state is None else int(state.step[0])
    folder.start(cell, start)
    bar = progress.add_task(title, total=cell.train.steps, completed=start, status="compiling")
    saved = time.monotonic()

    def is_due(step: int) -> bool:
        return time.monotonic() - saved >= checkpoint_seconds

    for now in fit(cell, state, wanted=is_due):
        check()
        speed = round((now.step - start) / now.seconds, 2)
        losses = [float(loss) if np.isfinite(loss) else None for loss in now.losses]
        folder.log({"step": now.step, "loss": losses, "steps_per_second": speed})
        progress.update(bar, completed=now.step, status=f"loss {np.mean(now.losses):.4f}  {speed:.1f} steps/s")
        start = now.step
        if now.state is not None:
            state = now.state
            checkpoint.save(folders, state)
            saved = time.monotonic()
    progress.remove_task(bar)
    if state is None:
        raise RuntimeError("a cell has at least one step")
    return state
