"""`curve`: what an accuracy curve over many lengths costs, compilation included.

ours                  all lengths, in a few programs, which are counted
one-program-a-length  each length compiled alone, for a sample of the lengths

Seconds run from an empty program cache, with nothing read from disk, until all rows are computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax

from benchmarks import harness, training
from benchmarks.harness import Row
from benchmarks.model import ModelBenchmark
from rope_jax.encoders.base import Params
from rope_jax.study.config import Cell
from rope_jax.study.settings import EvaluateConfig
from rope_jax.training import devices

BASELINE = "ours"
ONE_BY_ONE = "one-program-a-length"
MAX_PROGRAMS = 6  # the target
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass(frozen=True, kw_only=True)
class CurveBenchmark(ModelBenchmark):
    """What an accuracy curve over many lengths costs, compilation included.

    Attributes:
      rounds: how often each contender is timed; the median counts.
      longest: the curve is over the lengths 1 .. longest, in symbols.
      examples: test examples per length.
      sample: how many of the lengths are compiled one by one.
      replicas: how many models are evaluated; 0 means one per core.
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
            raise ValueError(f"--sample {self.sample} is more than the {self.longest} lengths up to --longest; lower it")
        if self.replicas < 0:
            raise ValueError(f"--replicas must not be negative, got {self.replicas}; 0 is one per core")
        self.evaluated(1)  # raises ValueError for sizes that do not fit together

    @property
    def sampled(self) -> list[int]:
        """The middle lengths of equal sections of the curve."""
        return [(2 * section + 1) * self.longest // (2 * self.sample) + 1 for section in range(self.sample)]

    def evaluated(self, *lengths: int) -> Cell:
        """A cell that evaluates these lengths."""
        cell = self.cell(self.longest, 0.0, replicas=self.replicas or harness.cores())
        return replace(cell, evaluate=EvaluateConfig(lengths=lengths, examples=self.examples))

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.configure()
        whole = self.evaluated(*range(1, self.longest + 1))
        cells = {BASELINE: [whole], ONE_BY_ONE: [self.evaluated(length) for length in self.sampled]}
        params = training.initial_params(whole)
        log(f"lengths 1 to {self.longest}, and {self.sampled} one by one ...")
        num_programs: dict[str, int] = {}
        with compiled_programs() as programs, harness.programs_on_disk(None):
            calls = {name: counted(name, cells[name], params, programs, num_programs) for name in cells}
            seconds_of_all = harness.interleaved(calls, self.rounds, warm=False)
        num_lengths = {BASELINE: self.longest, ONE_BY_ONE: self.sample}
        seconds = {name: [x / num_lengths[name] for x in rounds] for name, rounds in seconds_of_all.items()}
        return [
            {"contender": name, "lengths": num_lengths[name], "programs": num_programs[name], "examples": self.examples}
            | {f"{key}_a_length" if key == "median_seconds" else key: value for key, value in figures.items()}
            | {"seconds_for_all": float(f"{figures['median_seconds'] * self.longest:.5g}"), "replicas": len(whole.seeds)}
            | self.settings
            for name, figures in harness.summary(seconds, BASELINE).items()
        ]

    def table(self, rows: list[Row]) -> str:
        header = ["contender", "lengths", "programs", "s per length", f"s for {self.longest}", "times ours"]
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
            f"{harness.markdown(header, lines)}\n\n{self.examples} examples per length, "
            f"{rows[0]['replicas']} replicas, compilation included: {harness.ROUNDS.format(rounds=self.rounds)}\n"
            f"Ours took {rows[0]['programs']} programs; the target is at most {MAX_PROGRAMS}."
        )


@contextmanager
def compiled_programs() -> Iterator[list[str]]:
    """A list that gets the name of every program that XLA compiles inside the block."""
    programs: list[str] = []

    def note(event: str, duration_secs: float, **attributes: str | int) -> None:
        if event == COMPILE_EVENT:
            programs.append(str(attributes["fun_name"]))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def counted(
    name: str, cells: list[Cell], params: Params, programs: list[str], num_programs: dict[str, int]
) -> Callable[[], None]:
    """A call that evaluates cells from an empty program cache, and enters the number of programs under the name."""

    def call() -> None:
        jax.clear_caches()
        programs.clear()
        for cell in cells:
            training.evaluate_all(cell, params)
        num_programs[name] = len(programs)

    return call
