"""`curve`: what an accuracy curve over many lengths costs, compilation included.

ours                  all lengths, in a few programs; how many is counted
one-program-a-length  each length compiled for itself, on a sample of the lengths

Seconds are from an empty program cache, with nothing read from disk, until all rows are there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from benchmarks import harness, step
from benchmarks.harness import Row
from rope_jax.study.config import Cell, EvaluateConfig
from rope_jax.training import devices, train
from rope_jax.training.evaluate import evaluate

MOST_PROGRAMS = 6
COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass(frozen=True, kw_only=True)
class CurveBenchmark(step.Sizes):
    """What an accuracy curve over many lengths costs, compilation included.

    Attributes:
      rounds: how often each contender is timed; the median counts.
      longest: the curve is over the lengths 1 .. longest, in symbols.
      examples: test examples a length.
      sample: how many of the lengths are compiled one by one.
      replicas: how many models are evaluated; 0 is one a core.
    """

    rounds: int = 3
    longest: int = 100
    examples: int = 512
    sample: int = 5
    replicas: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("longest", "examples", "sample"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.sample > self.longest:
            raise ValueError(f"--sample {self.sample} is more than the {self.longest} lengths that there are")
        if self.replicas < 0:
            raise ValueError(f"--replicas must not be negative, got {self.replicas}; 0 is one a core")
        self.evaluated(1)

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax")

    @property
    def sampled(self) -> list[int]:
        """Lengths in the middle of equal parts of the curve."""
        return [(2 * part + 1) * self.longest // (2 * self.sample) + 1 for part in range(self.sample)]

    def evaluated(self, *lengths: int) -> Cell:
        """A cell with these lengths to evaluate."""
        cell = self.cell(self.longest, 0.0, replicas=self.replicas or harness.cores())
        return replace(cell, evaluate=EvaluateConfig(lengths=lengths, examples=self.examples))

    def run(self, say: Callable[[str], None]) -> list[Row]:
        devices.configure(replicas=self.replicas or harness.cores())
        whole = self.evaluated(*range(1, self.longest + 1))
        seeds = jax.device_put(np.asarray(whole.seeds, np.uint32), devices.replica_sharding(len(whole.seeds)))
        params = train.init_replicas(seeds, {}, cell=whole).params
        programs: list[str] = []

        def note(event: str, duration_secs: float, **about: str | int) -> None:
            if event == COMPILED:
                programs.append(str(about["fun_name"]))

        jax.monitoring.register_event_duration_secs_listener(note)
        counted: dict[str, int] = {}

        def timed(name: str, cells: list[Cell]) -> Callable[[], Any]:
            def call() -> None:
                jax.clear_caches()
                programs.clear()
                for cell in cells:
                    list(evaluate(cell, params, np.full(len(cell.seeds), -1)))
                counted[name] = len(programs)

            return call

        say(f"lengths 1 to {self.longest}, and {self.sampled} one by one ...")
        calls = {
            "ours": timed("ours", [whole]),
            "one-program-a-length": timed("one-program-a-length", [self.evaluated(length) for length in self.sampled]),
        }
        lengths = {"ours": self.longest, "one-program-a-length": self.sample}
        try:
            with harness.programs_on_disk(None):
                seconds = harness.interleaved(calls, self.rounds, warm=False)
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        each = {name: [one / lengths[name] for one in own] for name, own in seconds.items()}
        found = harness.summary(each, "ours")
        return [
            {"contender": name, "lengths": lengths[name], "programs": counted[name], "examples": self.examples}
            | {f"{key}_a_length" if key == "median_seconds" else key: value for key, value in figures.items()}
            | {"seconds_for_all": float(f"{figures['median_seconds'] * self.longest:.5g}"), "replicas": len(whole.seeds)}
            | self.about
            for name, figures in found.items()
        ]

    def table(self, rows: list[Row]) -> str:
        header = ["contender", "lengths", "programs", "s a length", f"s for {self.longest}", "times ours"]
        lines = [
            [
                *(row[name] for name in ("contender", "lengths", "programs")),
                f"{row['median_seconds_a_length']:.3g}",
                f"{row['seconds_for_all']:.4g}{'' if row['lengths'] == self.longest else ' (estimate)'}",
                harness.ratio_text(row),
            ]
            for row in rows
        ]
        return (
            f"{harness.markdown(header, lines)}\n\n{self.examples} examples a length, "
            f"{rows[0]['replicas']} replicas, compilation included: {harness.ROUNDS.format(rounds=self.rounds)}\n"
            f"Ours took {rows[0]['programs']} programs; the target is at most {MOST_PROGRAMS}."
        )
