"""`step`: what a training step costs, beside PyTorch and beside plain JAX, and what each mechanism has a share in.

All contenders take the same steps: the same Transformer with RoPE, the same examples, of one length or with --shortest of mixed
lengths, AdamW with a clip by global norm. Seconds are of one step of one replica.

ours                      rope_jax.training.train, as `experiments.compare` runs it, several replicas at once
ours:whole-batch          without pieces: the whole batch in one forward and one backward pass
ours:one-bucket           every piece padded to the longest length; where lengths are mixed
ours:reference-attention  with `attend_reference` for `attend`
ours:token-axes           with linear maps of [B, T, width] for those of [B * T, width]
ours:threefry             with dropout from jax.random for our counter; where there is dropout
ours:unfused              with our attention for cuDNN's; on a GPU that has it, in bfloat16
ours:one-replica          one replica alone, on one device
plain-jax                 the step as one would first write it in JAX, one replica alone (benchmarks/plain_jax.py)
torch                     eager PyTorch with scaled_dot_product_attention, one model, a thread a core (benchmarks/pytorch.py)

The last two are compared in float32, torch on a CPU.
"""

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from benchmarks.contenders import plain_jax
from benchmarks.harness import Benchmark, Row
from rope_jax import RoPE
from rope_jax.model import attention, dropout, transformer
from rope_jax.study.config import Cell, EvaluateConfig, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Batch, Reverse
from rope_jax.training import devices, train
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan
from rope_jax.training.numbers import split_numbers

BASELINE = "ours"
TARGETS = {"torch": 0.5, "plain-jax": 0.45}
STEPS = 1000  # of the schedule


def ours(cell: Cell, plan: MicrobatchPlan | None = None) -> Callable[[], np.ndarray]:
    """A call that takes one step of all replicas and returns their losses; compiled at once, as the package is now."""
    plan = microbatch_plan(cell) if plan is None else plan
    seeds = jax.device_put(np.asarray(cell.seeds, np.uint32), devices.replica_sharding(len(cell.seeds)))
    cell, numbers = split_numbers(cell)
    numbers = jax.device_put(numbers, devices.whole_sharding(seeds.shape[0]))
    state = train.init_replicas(seeds, numbers, cell=cell)
    # a function of its own, so that what was traced before a mechanism was taken out is not used again
    chunk = partial(inspect.unwrap(train.train_chunk), cell=cell, steps=1, plan=plan)
    run = jax.jit(chunk, donate_argnums=(0,)).lower(state, seeds, numbers).compile()

    def call() -> np.ndarray:
        nonlocal state
        state, losses = run(state, seeds, numbers)
        return np.asarray(losses)

    return call


def threefry(drop: dropout.Dropout, x: jax.Array, place: int) -> jax.Array:
    """Dropout from jax.random, in place of `Dropout.__call__`."""
    keys = jax.vmap(lambda key: jax.random.fold_in(jax.random.key(key), place))(drop.keys)
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - drop.rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - drop.rate), 0)


@contextmanager
def without(mechanism: str) -> Iterator[None]:
    """The package with the plain form in place of a mechanism."""
    where, name, plain = {
        "reference-attention": (transformer, "attend", attention.attend_reference),
        "token-axes": (transformer.Linear, "__call__", transformer.Linear.__mro__[1].__call__),
        "threefry": (dropout.Dropout, "__call__", threefry),
        "unfused": (attention, "has_fused_kernel", lambda: False),
    }[mechanism]
    with mock.patch.object(where, name, plain):
        yield


Make = Callable[[Cell], Callable[[], Any]]


def contenders(cell: Cell) -> dict[str, Make]:
    """By name, what makes the call of a contender from a cell; "ours" comes first."""

    def patched(mechanism: str) -> Make:
        def make(cell: Cell) -> Callable[[], Any]:
            with without(mechanism):
                return ours(cell)

        return make

    def whole_batch(cell: Cell) -> Callable[[], Any]:
        return ours(cell, replace(microbatch_plan(cell), micro_batch_size=cell.train.batch_size))

    def one_bucket(cell: Cell) -> Callable[[], Any]:
        return ours(cell, replace(microbatch_plan(cell), bucket_lengths=(cell.train.max_length,)))

    def one_replica(cell: Cell) -> Callable[[], Any]:
        return ours(replace(cell, seeds=cell.seeds[:1]))

    def of(module: Any) -> Make:
        return lambda cell: module.trainer(cell, batches(cell, 4))

    made: dict[str, Make] = {BASELINE: ours, f"{BASELINE}:whole-batch": whole_batch}
    if len(microbatch_plan(cell).bucket_lengths) > 1:
        made[f"{BASELINE}:one-bucket"] = one_bucket
    half = cell.model.compute_dtype == "bfloat16"
    rate, fused = cell.train.dropout, half and attention.has_fused_kernel()
    for mechanism in ("reference-attention", "token-axes", *["threefry"] * bool(rate), *["unfused"] * fused):
        made[f"{BASELINE}:{mechanism}"] = patched(mechanism)
    if len(cell.seeds) > 1:
        made[f"{BASELINE}:one-replica"] = one_replica
    if half:
        return made
    made["plain-jax"] = of(plain_jax)
    if harness.why_missing(["torch"]) is None and jax.default_backend() == "cpu":
        made["torch"] = of(importlib.import_module("benchmarks.pytorch"))
    return made


def batches(cell: Cell, steps: int) -> list[Batch]:
    """The examples of the first seed's first steps."""
    draw = jax.jit(partial(train.draw_batch, cell=cell))
    return [draw(np.uint32(cell.seeds[0]), np.int32(step)) for step in range(steps)]


@dataclass(frozen=True, kw_only=True)
class Sizes(Benchmark):
    """The model and the batch that are timed.

    Attributes:
      rounds: how often each contender is timed; the median counts.
      batch_size: examples a step.
      num_layers: blocks.
      width: features of the residual stream.
      num_heads: attention heads.
      compute_dtype: of matrix products.
    """

    rounds: int = 5
    batch_size: int = 128
    num_layers: int = 5
    width: int = 64
    num_heads: int = 8
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    def cell(self, length: int, dropout: float, *, replicas: int, shortest: int | None = None) -> Cell:
        """Reversal of strings of up to one length, with RoPE; ValueError for sizes that do not fit."""
        return Cell(
            task=Reverse(alphabet=16),
            method=Method(encoder=RoPE()),
            model=ModelConfig(
                num_layers=self.num_layers, width=self.width, num_heads=self.num_heads, compute_dtype=self.compute_dtype
            ),
            train=TrainConfig(
                steps=STEPS,
                batch_size=self.batch_size,
                min_length=length if shortest is None else shortest,
                max_length=length,
                dropout=dropout,
            ),
            evaluate=EvaluateConfig(lengths=(length,)),
            seeds=tuple(range(replicas)),
        )

    @property
    def about(self) -> Row:
        """What a row says of them."""
        names = ("batch_size", "num_layers", "width", "num_heads", "compute_dtype", "rounds")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class StepBenchmark(Sizes):
    """What a training step costs, beside PyTorch and plain JAX.

    Attributes:
      lengths: symbols of an example; it has 2n + 2 input positions.
      shortest: the least length; lengths are then mixed, uniformly. Without, all examples have the same.
      dropouts: dropout probabilities.
      replicas: how many we train at once; 0 is one a core.
    """

    lengths: tuple[int, ...] = (40, 20)
    shortest: int | None = None
    dropouts: tuple[float, ...] = (0.0, 0.1)
    replicas: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas < 0:
            raise ValueError(f"--replicas must not be negative, got {self.replicas}; 0 is one a core")
        for name in ("lengths", "dropouts"):
            if not getattr(self, name):
                raise ValueError(f"--{name} must name at least one")
        self.cells()  # says what is wrong with a size

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax", "torch")

    def cells(self) -> list[Cell]:
        """What is trained: every length with every dropout."""
        replicas = self.replicas or harness.cores()
        each = itertools.product(self.lengths, self.dropouts)
        return [self.cell(length, rate, replicas=replicas, shortest=self.shortest) for length, rate in each]

    def run(self, say: Callable[[str], None]) -> list[Row]:
        devices.configure(replicas=self.replicas or harness.cores())
        if why := harness.why_missing(["torch"]):
            say(f"torch: {why}")
        rows = []
        for cell in self.cells():
            length, rate = cell.train.max_length, cell.train.dropout
            say(f"{length} symbols, dropout {rate} ...")
            calls = {name: make(cell) for name, make in contenders(cell).items()}
            seconds = harness.interleaved(calls, self.rounds)
            replicas = {name: len(cell.seeds) if many(name) else 1 for name in calls}
            each = {name: [one / replicas[name] for one in own] for name, own in seconds.items()}
            rows += [
                {"contender": name, "length": length, "shortest": cell.train.min_length, "dropout": rate}
                | {"replicas": replicas[name], **figures, **self.about}
                for name, figures in harness.summary(each, BASELINE).items()
            ]
        return rows

    def table(self, rows: list[Row]) -> str:
        header = ["symbols", "dropout", "contender", "replicas", "ms", "times ours"]
        shown = ("length", "dropout", "contender", "replicas")
        lines = [[*(row[name] for name in shown), f"{row['median_seconds'] * 1e3:.4g}", harness.ratio_text(row)] for row in rows]
        said = []
        for name, target in TARGETS.items():
            if found := [row["ratio"] for row in rows if row["contender"] == name]:
                said.append(f"Ours takes at most {1 / min(found):.2f} of the time of {name}; the target is {target}.")
        alone = {(row["length"], row["dropout"]): row["ratio"] for row in rows if row["contender"] == f"{BASELINE}:one-replica"}
        for name in TARGETS if alone else ():
            found = [row["ratio"] / alone[row["length"], row["dropout"]] for row in rows if row["contender"] == name]
            if found:
                said.append(f"One replica of ours alone takes at most {1 / min(found):.2f} of the time of {name}.")
        text = harness.markdown(header, lines)
        about = f"A step of one replica, {self.batch_size} examples: {harness.ROUNDS.format(rounds=self.rounds)}"
        return "\n".join([text, "", about, *said])


def many(name: str) -> bool:
    """Whether a contender trains all replicas at once."""
    return name.startswith(BASELINE) and not name.endswith("one-replica")
