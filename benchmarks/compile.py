"""`compile`: how long compiling takes.

Training, all lengths up to --length:

ours                      the program of a cell; the model is compiled once for each bucket length
ours:one-bucket           the same with one bucket: everything padded to the longest length
ours:scanned-layers       the same as "ours" with Implementation(scan_layers=True): the layers as one loop
ours:warm-cache           the same as "ours", read from the compilation cache on disk
plain-jax                 the step as one would first write it, everything padded to the longest length

Evaluation, one program: "ours:evaluation" computes the layers as one loop, "ours:evaluation-unrolled" one after the other.
Seconds are of tracing, lowering and compiling.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks import harness, training
from benchmarks.contenders import plain_jax
from benchmarks.harness import Row
from benchmarks.model import ModelBenchmark
from rope_jax.model.implementation import Implementation
from rope_jax.study.config import Cell
from rope_jax.training import devices
from rope_jax.training.microbatch import microbatch_plan


@dataclass(frozen=True, kw_only=True)
class CompileBenchmark(ModelBenchmark):
    """How long compiling takes, for training and evaluation.

    Attributes:
      length: symbols of the longest example; training draws lengths from 1.
    """

    rounds: int = 3
    length: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cell(self.length, 0.0, replicas=1)  # raises ValueError for sizes that do not fit together

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.configure()
        log(f"{self.num_layers} layers, {self.length} symbols ...")
        with tempfile.TemporaryDirectory() as folder:
            calls = self.calls(folder)
            calls["ours:warm-cache"]()  # writes what the timed calls read
            figures = harness.summary(harness.interleaved(calls, self.rounds, warm=False), "ours")
        return [{"contender": name, "length": self.length, **values, **self.settings} for name, values in figures.items()]

    def calls(self, folder: str) -> dict[str, training.Call]:
        """Every contender's call; "ours:warm-cache" keeps its programs in the folder."""
        cell = self.cell(self.length, 0.0, replicas=harness.cores())
        mixed = self.cell(self.length, 0.0, replicas=harness.cores(), shortest=1)
        scanned, unrolled = Implementation(scan_layers=True), Implementation(scan_layers=False)
        chosen, in_a_loop = microbatch_plan(mixed), training.computed_with(mixed, scan_layers=True)
        return {
            "ours": uncached(lambda: training.lower_training(mixed, chosen)),
            "ours:one-bucket": uncached(lambda: training.lower_training(mixed, training.one_bucket(mixed))),
            "ours:scanned-layers": uncached(lambda: training.lower_training(mixed, in_a_loop)),
            "ours:warm-cache": uncached(lambda: training.lower_training(mixed, chosen), folder=folder),
            "plain-jax": uncached(lambda: lower_plain(cell)),
            "ours:evaluation": uncached(lambda: training.lower_evaluation(cell, scanned)),
            "ours:evaluation-unrolled": uncached(lambda: training.lower_evaluation(cell, unrolled)),
        }

    def table(self, rows: list[Row]) -> str:
        header = ["contender", "s", "times ours"]
        lines = [[row["contender"], f"{row['median_seconds']:.3g}", harness.ratio_text(row)] for row in rows]
        return (
            f"{harness.markdown(header, lines)}\n\n{self.num_layers} layers, lengths 1 to "
            f"{self.length}: {harness.ROUNDS.format(rounds=self.rounds)}"
        )


def uncached(lower: Callable[[], Any], *, folder: str | None = None) -> training.Call:
    """A call that lowers and compiles without JAX's caches in memory.

    Args:
      lower: traces and lowers a program.
      folder: the compilation cache on disk; None uses none.
    """

    def call() -> Any:
        jax.clear_caches()
        with harness.programs_on_disk(folder):
            return lower().compile()

    return call


def lower_plain(cell: Cell) -> Any:
    """The lowered program of a step in plain JAX; nothing is computed."""
    optimizer = training.optimizer(cell)
    params, batch = training.abstract_params_and_batch(cell)
    return plain_jax.stepper(cell, optimizer).lower(params, jax.eval_shape(optimizer.init, params), batch, 0)
