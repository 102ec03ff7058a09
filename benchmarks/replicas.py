"""`replicas`: what a step of several replicas costs beside a step of one.

Replicas are spread over the devices; on a CPU every core is a virtual device. The contenders are "ours" with different numbers of
replicas. A ratio compares the step of all replicas with the step of one: 2 for 2 replicas would mean that nothing is gained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks import harness, training
from benchmarks.harness import Row
from benchmarks.model import ModelBenchmark
from rope_jax.training import devices
from rope_jax.training.microbatch import microbatch_plan

TARGET = 1.5  # for 2 replicas on 2 cores


@dataclass(frozen=True, kw_only=True)
class ReplicasBenchmark(ModelBenchmark):
    """What a step of several replicas costs beside a step of one.

    Attributes:
      counts: numbers of replicas, each compared with 1.
      length: symbols of an example; an example of n symbols has 2n + 2 input positions.
      dropout: dropout probability.
    """

    counts: tuple[int, ...] = (2, 4)
    length: int = 40
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for count in self.counts:
            if count < 2:
                raise ValueError(f"--counts must hold numbers from 2, got {count}; each is compared with 1")
        self.cell(self.length, self.dropout, replicas=1)  # raises ValueError for sizes that do not fit together

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.configure()
        one = self.cell(self.length, self.dropout, replicas=1)
        log(f"{self.length} symbols, dropout {self.dropout} ...")
        calls = {}
        for count in (1, *self.counts):
            cell = replace(one, seeds=tuple(range(count)))
            calls[str(count)] = training.trainer(cell, microbatch_plan(cell))
        figures = harness.summary(harness.interleaved(calls, self.rounds), "1")
        return [{"contender": "ours", "replicas": int(count), **values, **self.settings} for count, values in figures.items()]

    def table(self, rows: list[Row]) -> str:
        header = ["replicas", "ms per step", "times one replica"]
        lines = [[row["replicas"], f"{row['median_seconds'] * 1e3:.4g}", harness.ratio_text(row)] for row in rows]
        return (
            f"{harness.markdown(header, lines)}\n\nA step of all replicas, {self.batch_size} "
            f"examples each: {harness.ROUNDS.format(rounds=self.rounds)}\nThe target is {TARGET} for 2 replicas on 2 cores."
        )
