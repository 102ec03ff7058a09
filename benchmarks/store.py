"""`store`: what the store and the launcher cost beside the compute of a study, and how quickly a large study is looked at.

compute    training and evaluation alone, in memory
store      the same through the launcher `here`, with all files that it writes: locks, records, logs, checkpoints, rows, sessions
import     a process that imports JAX and rope_jax.study, and does nothing
status     `python -m experiments.compare CONFIG --status`, half of the trainings finished
dry-run    the same with --dry-run

The trainings of a cell run together, with the store and without, cell after cell in turns. Programs are compiled before.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, run

import numpy as np

from benchmarks import harness
from benchmarks.harness import Benchmark, Row
from benchmarks.tiny_study import SEEDS, study
from rope_jax.study import machine
from rope_jax.study.config import Cell, Experiment
from rope_jax.study.launchers import here
from rope_jax.study.launchers.base import Launch
from rope_jax.study.options import Watch
from rope_jax.study.rows import completed, row
from rope_jax.study.store import open_store
from rope_jax.training import devices
from rope_jax.training.evaluate import evaluate
from rope_jax.training.train import fit

TARGET_RATIO = 1.05
TARGET_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class StoreBenchmark(Benchmark):
    """What the store costs beside the compute, and how quickly a large study is looked at.

    Attributes:
      rounds: how often each command is timed; the median counts.
      trainings: how many are run, in cells of 50.
      steps: optimiser steps of each.
      listed: trainings of the study that is looked at.
    """

    rounds: int = 5
    trainings: int = 500
    steps: int = 100
    listed: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        harness.require_positive(self, "trainings", "steps", "listed")

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax", "orbax-checkpoint")

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.configure()
        with tempfile.TemporaryDirectory() as folder:
            log(f"{self.trainings} trainings, with the store and without ...")
            rows = self._overhead(Path(folder) / "run")
            log(f"a study of {self.listed} trainings ...")
            return rows + self._looks(Path(folder))

    def _overhead(self, folder: Path) -> list[Row]:
        experiment = study(self.trainings, self.steps)
        seconds, peaks = timed(experiment, folder)
        rows: list[Row] = [
            {"contender": name, "trainings": self.trainings, "steps": self.steps, **figures}
            for name, figures in harness.summary(seconds, "compute").items()
        ]
        total = sum(seconds["store"]) / sum(seconds["compute"])
        rows[1] |= {"total_ratio": float(f"{total:.5g}"), "seconds_per_training": sum(seconds["store"]) / self.trainings}
        return [*rows, *({"contender": "memory", "trainings": count, "peak_bytes": peak} for count, peak in peaks.items())]

    def _looks(self, folder: Path) -> list[Row]:
        experiment = study(self.listed, self.steps)
        half_finished(experiment, folder / "listed")
        config = folder / "config.py"
        config.write_text(
            f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nfrom tiny_study import study\n"  # and no benchmark
            f"def experiment():\n    return study({self.listed}, {self.steps})\n"
        )
        look = [sys.executable, "-m", "experiments.compare", str(config), "--out", str(folder / "listed")]
        contenders = {
            "import": [sys.executable, "-c", "import jax, rope_jax.study"],
            "status": [*look, "--status"],
            "dry-run": [*look, "--dry-run"],
        }
        calls = {name: lambda command=command: run(command, check=True, stdout=DEVNULL) for name, command in contenders.items()}
        figures = harness.summary(harness.interleaved(calls, self.rounds), "import")
        return [{"contender": name, "trainings": self.listed, **values} for name, values in figures.items()]

    def table(self, rows: list[Row]) -> str:
        timed = [each for each in rows if "ratio" in each]
        lines = [
            [each["contender"], each["trainings"], f"{each['median_seconds']:.3g}", harness.ratio_text(each)] for each in timed
        ]
        total = next(each["total_ratio"] for each in rows if "total_ratio" in each)
        memory = [
            f"{each['peak_bytes'] / 1e6:.0f} MB after {each['trainings']}" for each in rows if each["contender"] == "memory"
        ]
        return (
            f"{harness.markdown(['', 'trainings', 's', 'times the first'], lines)}\n\n"
            f"compute and store: a cell of {SEEDS} trainings. All of them take {total:.3f} times the compute; the "
            f"target is {TARGET_RATIO}.\nstatus and dry-run: {harness.ROUNDS.format(rounds=self.rounds)} The target is "
            f"{TARGET_SECONDS} s.\nPeak memory: {', '.join(memory)} trainings."
        )


class _Turns(Watch):
    """Computes each cell alone when the store has finished it; notes the seconds of both, and the memory."""

    def __init__(self, experiment: Experiment) -> None:
        self.cells = iter(experiment.cells())
        self.seconds: dict[str, list[float]] = {"compute": [], "store": []}
        self.peaks: dict[int, int] = {}
        self.done = 0
        self.since = time.perf_counter()

    def finished(self, name: str) -> None:
        """A cell is done."""
        store = time.perf_counter() - self.since
        cell = next(self.cells)
        began = time.perf_counter()
        compute(cell)
        self.seconds["compute"].append(time.perf_counter() - began)
        self.seconds["store"].append(store)
        self.done += len(cell.seeds)
        self.peaks[self.done] = machine.peak_bytes() or 0
        self.since = time.perf_counter()


def timed(experiment: Experiment, folder: Path) -> tuple[dict[str, list[float]], dict[int, int]]:
    """Runs a study, and computes each cell alone in between.

    Returns:
      The seconds of each cell, with the store and without; and the peak memory by the number of trainings that were run, after a
      fifth of them and at the end.
    """
    warm = replace(experiment, methods=experiment.methods[:1])
    _launch(warm, folder.with_name("warm"), _Turns(warm))
    watch = _Turns(experiment)
    _launch(experiment, folder, watch)
    watch.seconds["store"][-1] += time.perf_counter() - watch.since  # what comes after the last cell
    counts = list(watch.peaks)
    return watch.seconds, {count: watch.peaks[count] for count in (counts[max(0, len(counts) // 5 - 1)], counts[-1])}


def _launch(experiment: Experiment, folder: Path, watch: Watch) -> None:
    here.launch(Launch(experiment=experiment, store=open_store(folder), arguments=(), command="benchmarks store", watch=watch))


def compute(cell: Cell) -> None:
    """Trains and evaluates a cell in memory."""
    last = None
    for progress in fit(cell, None, wanted=lambda step: False):
        last = progress.state or last
    if last is None:
        raise RuntimeError("a training ends with its state")
    for _ in evaluate(cell, last.params, np.asarray(last.diverged_at)):
        pass


def half_finished(experiment: Experiment, folder: Path) -> None:
    """Writes rows for every other seed of a study, as if they had been run."""
    store = open_store(folder)
    store.begin()
    for cell in experiment.cells():
        for seed in cell.seeds[::2]:
            made = [
                row(cell, variant, seed=seed, length=length, examples=64, distinct=1.0, measured={}, diverged_at=-1)
                for variant in cell.method.all_variants
                for length in cell.evaluate.lengths
            ]
            store.training(cell, seed).finish([completed(each) for each in made])
