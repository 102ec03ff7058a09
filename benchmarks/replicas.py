"""`replicas`: what a step of several replicas costs beside a step of one.

Replicas are spread over the devices, on a CPU one virtual device a core. Contenders are "ours" with so many replicas; a ratio is
that of the whole step to the one of a single replica, so that 2 would mean that nothing is gained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks import harness, step
from benchmarks.harness import Row
from rope_jax.training import devices

TARGET = 1.5  # of 2 replicas on 2 cores


@dataclass(frozen=True, kw_only=True)
class ReplicasBenchmark(step.Sizes):
    """What a step of several replicas costs beside a step of one.

    Attributes:
      counts: numbers of replicas, compared with 1.
      length: symbols of an example; it has 2n + 2 input positions.
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
        self.cell(self.length, self.dropout, replicas=1)

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax")

    def run(self, say: Callable[[str], None]) -> list[Row]:
        devices.configure(replicas=max(self.counts))
        cell = self.cell(self.length, self.dropout, replicas=1)
        say(f"{self.length} symbols, dropout {self.dropout} ...")
        calls = {str(count): step.ours(replace(cell, seeds=tuple(range(count)))) for count in (1, *self.counts)}
        found = harness.summary(harness.interleaved(calls, self.rounds), "1")
        return [{"contender": "ours", "replicas": int(count), **figures, **self.about} for count, figures in found.items()]

    def table(self, rows: list[Row]) -> str:
        header = ["replicas", "ms a step", "times one replica"]
        lines = [[row["replicas"], f"{row['median_seconds'] * 1e3:.4g}", harness.ratio_text(row)] for row in rows]
        return (
            f"{harness.markdown(header, lines)}\n\nA step of all replicas, {self.batch_size} "
            f"examples each: {harness.ROUNDS.format(rounds=self.rounds)}\nThe target is {TARGET} for 2 replicas on 2 cores."
        )
