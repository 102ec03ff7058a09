"""`step`: what a training step costs, beside PyTorch and plain JAX, and what each mechanism contributes.

All contenders take the same steps: the same Transformer with RoPE, the same examples, AdamW with a clip by global norm. Examples
have one length, or mixed lengths with --shortest. Seconds are of one step of one replica.

ours                      rope_jax.training, as `experiments.compare` runs it, several replicas at once
ours:whole-batch          without micro-batches: the whole batch in one forward and one backward pass
ours:one-bucket           every example padded to the longest length; only where lengths are mixed
ours:reference-attention  with Implementation(attention="reference"): all scores at once
ours:token-axes           with Implementation(tokens_as_rows=False): linear maps of [B, T, width] instead of [B * T, width]
ours:threefry             with Implementation(dropout="threefry"): dropout from jax.random; only where there is dropout
ours:unfused              with Implementation(fused_attention=False); only in bfloat16, on a GPU that has cuDNN's fused attention
ours:one-replica          one replica alone, on one device
plain-jax                 the step as one would first write it, one replica alone (benchmarks/contenders/plain_jax.py)
torch                     eager PyTorch with scaled_dot_product_attention, one model, one thread per core
                          (benchmarks/contenders/pytorch.py)

plain-jax and torch take part in float32 only, torch on a CPU only.
"""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from benchmarks import harness, training
from benchmarks.contenders import plain_jax
from benchmarks.harness import Row
from benchmarks.model import ModelBenchmark
from rope_jax.model.attention import has_fused_kernel
from rope_jax.study.config import Cell
from rope_jax.training import devices
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan

BASELINE = "ours"
ONE_REPLICA = "ours:one-replica"
TARGETS = {"torch": 0.5, "plain-jax": 0.45}  # at most this share of their time
BATCHES = 4  # that plain-jax and torch take in turns

Make = Callable[[], training.Call]


@dataclass(frozen=True, kw_only=True)
class StepBenchmark(ModelBenchmark):
    """What a training step costs, beside PyTorch and plain JAX.

    Attributes:
      lengths: symbols of the longest example; an example of n symbols has 2n + 2 input positions.
      shortest: symbols of the shortest example; lengths are then uniform in between. Without it, all examples have one length.
      dropouts: dropout probabilities.
      replicas: how many replicas "ours" trains at once; 0 means one per core.
    """

    lengths: tuple[int, ...] = (40, 20)
    shortest: int | None = None
    dropouts: tuple[float, ...] = (0.0, 0.1)
    replicas: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 0:
            raise ValueError(f"--replicas must not be negative, got {self.replicas}; 0 is one per core")
        for name in ("lengths", "dropouts"):
            if not getattr(self, name):
                raise ValueError(f"--{name} must list at least one value")
        self.cells()  # raises ValueError for sizes that do not fit together

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax", "torch")

    def cells(self) -> list[Cell]:
        """What is trained: every length with every dropout."""
        replicas = self.replicas or harness.cores()
        combinations = itertools.product(self.lengths, self.dropouts)
        return [self.cell(length, rate, replicas=replicas, shortest=self.shortest) for length, rate in combinations]

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.configure()
        if reason := harness.why_missing(["torch"]):
            log(f"torch: {reason}")
        rows = []
        for cell in self.cells():
            length, rate = cell.train.max_length, cell.train.dropout
            log(f"{length} symbols, dropout {rate} ...")
            calls = {name: make() for name, make in contenders(cell).items()}
            replicas = {name: num_replicas(name, cell) for name in calls}
            seconds_of_all = harness.interleaved(calls, self.rounds)
            seconds = {name: [x / replicas[name] for x in rounds] for name, rounds in seconds_of_all.items()}
            rows += [
                {"contender": name, "length": length, "shortest": cell.train.min_length, "dropout": rate}
                | {"replicas": replicas[name], **figures, **self.settings}
                for name, figures in harness.summary(seconds, BASELINE).items()
            ]
        return rows

    def table(self, rows: list[Row]) -> str:
        header = ["symbols", "dropout", "contender", "replicas", "ms", "times ours"]
        columns = ("length", "dropout", "contender", "replicas")
        lines = [
            [*(row[name] for name in columns), f"{row['median_seconds'] * 1e3:.4g}", harness.ratio_text(row)] for row in rows
        ]
        text = harness.markdown(header, lines)
        rounds = harness.ROUNDS.format(rounds=self.rounds)
        return "\n".join([text, "", f"A step of one replica, {self.batch_size} examples: {rounds}", *shares(rows)])


def contenders(cell: Cell) -> dict[str, Make]:
    """By name, a function that makes the contender's call; "ours" comes first."""
    made: dict[str, Make] = {name: _ours(cell, plan) for name, plan in plans(cell).items()}
    if len(cell.seeds) > 1:
        alone = replace(cell, seeds=cell.seeds[:1])
        made[ONE_REPLICA] = _ours(alone, microbatch_plan(alone))
    if cell.model.compute_dtype == "float32":
        made["plain-jax"] = lambda: plain_jax.trainer(
            cell, training.first_seed_params(cell), training.first_seed_batches(cell, BATCHES), training.optimizer(cell)
        )
        if harness.why_missing(["torch"]) is None and jax.default_backend() == "cpu":
            pytorch = importlib.import_module("benchmarks.contenders.pytorch")
            made["torch"] = lambda: pytorch.trainer(
                cell, training.first_seed_params(cell), training.first_seed_batches(cell, BATCHES), training.learning_rates(cell)
            )
    return made


def plans(cell: Cell) -> dict[str, MicrobatchPlan]:
    """By the name of its contender, the plan that the package chooses, and plans that each leave one mechanism out."""
    chosen = microbatch_plan(cell)
    found = {BASELINE: chosen, "ours:whole-batch": training.whole_batch(cell)}
    if len(chosen.bucket_lengths) > 1:
        found["ours:one-bucket"] = training.one_bucket(cell)
    options: dict[str, dict[str, Any]] = {
        "ours:reference-attention": {"attention": "reference"},
        "ours:token-axes": {"tokens_as_rows": False},
    }
    if cell.train.dropout:
        options["ours:threefry"] = {"dropout": "threefry"}
    if cell.model.compute_dtype == "bfloat16" and has_fused_kernel():
        options["ours:unfused"] = {"fused_attention": False}
    return found | {name: training.computed_with(cell, **changed) for name, changed in options.items()}


def num_replicas(name: str, cell: Cell) -> int:
    """How many replicas a contender trains in a step."""
    return len(cell.seeds) if name.startswith(BASELINE) and name != ONE_REPLICA else 1


def _ours(cell: Cell, plan: MicrobatchPlan) -> Make:
    return lambda: training.trainer(cell, plan)


def shares(rows: list[Row]) -> list[str]:
    """For each other library, the largest share of its time that ours takes: several replicas at once, and one alone."""
    alone = {(row["length"], row["dropout"]): row["ratio"] for row in rows if row["contender"] == ONE_REPLICA}
    several, single = [], []
    for name, target in TARGETS.items():
        others = [row for row in rows if row["contender"] == name]
        if others:
            share = max(1 / row["ratio"] for row in others)
            several.append(f"Ours takes at most {share:.2f} of the time of {name}; the target is {target}.")
        if others and alone:
            share = max(alone[row["length"], row["dropout"]] / row["ratio"] for row in others)
            single.append(f"One replica of ours alone takes at most {share:.2f} of the time of {name}.")
    return several + single
