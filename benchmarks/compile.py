"""`compile`: how long compiling takes.

Training, all lengths up to --length:

ours                      one program for a cell; a branch a bucket of lengths
ours:one-bucket           the same, everything padded to the longest
ours:scanned-layers       the same as ours, with the layers as one loop
ours:warm-cache           the same as ours, read from the compilation cache on disk
plain-jax                 the step as one would first write it, everything padded to the longest

Evaluation, one program: "ours:evaluation" has the layers as one loop, "ours:evaluation-unrolled" one after the other. Seconds are
of tracing, lowering and compiling.
"""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks import harness, step
from benchmarks.contenders import plain_jax
from benchmarks.harness import Row
from rope_jax.model import transformer
from rope_jax.study.config import Cell
from rope_jax.training import devices, train
from rope_jax.training.evaluate import Program, count_replicas
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan
from rope_jax.training.numbers import split_numbers


@dataclass(frozen=True, kw_only=True)
class CompileBenchmark(step.Sizes):
    """How long compiling takes, for training and evaluation.

    Attributes:
      length: the longest example, in symbols; training draws lengths from 1.
    """

    rounds: int = 3
    length: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cell(self.length, 0.0, replicas=1)

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax")

    def run(self, say: Callable[[str], None]) -> list[Row]:
        devices.configure(replicas=harness.cores())
        cell = self.cell(self.length, 0.0, replicas=harness.cores())
        mixed = self.cell(self.length, 0.0, replicas=harness.cores(), shortest=1)
        one_bucket = replace(microbatch_plan(mixed), bucket_lengths=(self.length,))
        scanned = mock.patch.object(train, "functional", scanning)
        unrolled = mock.patch("rope_jax.training.evaluate.functional", unrolling)
        with tempfile.TemporaryDirectory() as folder:
            calls = {
                "ours": anew(lambda: lower_training(mixed)),
                "ours:one-bucket": anew(lambda: lower_training(mixed, one_bucket)),
                "ours:scanned-layers": anew(lambda: lower_training(mixed), patched=scanned),
                "ours:warm-cache": anew(lambda: lower_training(mixed), folder=folder),
                "plain-jax": anew(lambda: lower_plain(cell)),
                "ours:evaluation": anew(lambda: lower_evaluation(cell)),
                "ours:evaluation-unrolled": anew(lambda: lower_evaluation(cell), patched=unrolled),
            }
            say(f"{self.num_layers} layers, {self.length} symbols ...")
            calls["ours:warm-cache"]()  # writes what the timed ones read
            found = harness.summary(harness.interleaved(calls, self.rounds, warm=False), "ours")
        return [{"contender": name, "length": self.length, **figures, **self.about} for name, figures in found.items()]

    def table(self, rows: list[Row]) -> str:
        header = ["contender", "s", "times ours"]
        lines = [[row["contender"], f"{row['median_seconds']:.3g}", harness.ratio_text(row)] for row in rows]
        return (
            f"{harness.markdown(header, lines)}\n\n{self.num_layers} layers, lengths 1 to "
            f"{self.length}: {harness.ROUNDS.format(rounds=self.rounds)}"
        )


def anew(
    lower: Callable[[], Any], *, patched: AbstractContextManager[Any] | None = None, folder: str | None = None
) -> Callable[[], Any]:
    """A call that lowers and compiles with nothing kept in memory; programs are on disk in the folder, if there is one."""

    def call() -> Any:
        jax.clear_caches()
        with harness.programs_on_disk(folder), patched or nullcontext():
            return lower().compile()

    return call


def scanning(*args: Any) -> Any:
    """`transformer.functional` with the layers as one loop."""
    init, apply = transformer.functional(*args)
    return init, partial(apply, scan_layers=True)


def unrolling(*args: Any) -> Any:
    """`transformer.functional` with the layers one after the other, whatever is asked for."""
    init, apply = transformer.functional(*args)
    return init, lambda *args, scan_layers, **options: apply(*args, **options)


def lower_training(cell: Cell, plan: MicrobatchPlan | None = None) -> Any:
    """The program that trains a cell."""
    seeds = jax.ShapeDtypeStruct((len(cell.seeds),), np.uint32)
    plan = plan or microbatch_plan(cell)
    cell, numbers = split_numbers(cell)
    state = jax.eval_shape(partial(train.init_replicas, cell=cell), seeds, numbers)
    return train.train_chunk.lower(state, seeds, numbers, cell=cell, steps=100, plan=plan)


def lower_plain(cell: Cell) -> Any:
    """The program of a step in plain JAX, everything padded to the longest."""
    batch = jax.eval_shape(partial(train.draw_batch, cell=cell), *(jax.ShapeDtypeStruct((), t) for t in (np.uint32, np.int32)))
    state = jax.eval_shape(partial(train.init_state, cell=cell), jax.ShapeDtypeStruct((), np.uint32))
    return plain_jax.stepper(cell).lower(state.params, state.opt_state, batch, 0)


def lower_evaluation(cell: Cell) -> Any:
    """The program that evaluates one bucket of lengths."""
    replicas, length = len(cell.seeds), cell.train.max_length
    program = Program(
        task=cell.task,
        examples=512,
        max_length=length,
        model=cell.model,
        encoder=cell.method.encoder,
        policy=cell.method.policy,
        replicas=replicas,
    )

    def own(seed: jax.Array) -> Any:
        return train.init_state(seed, cell).params, cell.method.encoder.prepare(
            {}, cell.task.input_length(length), cell.model.dims
        )

    shapes = jax.eval_shape(jax.vmap(own), jax.ShapeDtypeStruct((replicas,), np.uint32))
    return count_replicas.lower(shapes, np.int32(length), program=program)
