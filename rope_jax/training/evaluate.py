"""Accuracy by length: every variant of one trained model, on the same fixed test examples.

A variant enters the compiled program as arrays (what its encoder prepares), so that all variants share it; lengths are padded to
a few buckets, so that all lengths in one share it too. Teacher forcing is enough: every predicted token of y and EOS is right
exactly if greedy decoding, which then reads those same tokens, gives the exact answer.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.encoders.base import Dims, Encoder, Params, Prepared
from rope_jax.model import sizes
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.policies import Policy
from rope_jax.study.config import Cell, ModelConfig, Run
from rope_jax.study.serialization import label, options, to_json
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics import Metric
from rope_jax.training.devices import over_replicas, replica_sharding
from rope_jax.training.token_positions import token_positions

_POSITIONS_KEY = 230_516  # test positions are drawn from this key, the length and the example alone
_MOST_BUCKETS = 4  # each compiles the model anew

Measured = dict[str, tuple[jax.Array, jax.Array]]  # the sum and the count of each metric, by its name


def buckets(lengths: tuple[int, ...], work: Callable[[int], float]) -> dict[int, int]:
    """What each length is padded to: at most 4 of the lengths, so that padding and compiling together take least.

    Args:
      lengths: to evaluate.
      work: how long one of them takes if it is padded to this length, as a share of what compiling one program takes.
    """
    ordered = sorted(lengths)
    least: list[tuple[float, tuple[int, ...]]] = [(0, ()), *[(math.inf, ())] * len(ordered)]  # of the first lengths, with edges

    def grouped(end: int) -> Iterator[tuple[float, tuple[int, ...]]]:
        edge = ordered[end - 1]
        for begin in range(end):
            before, edges = least[begin]
            yield before + 1 + (end - begin) * work(edge), (*edges, edge)

    for _ in range(_MOST_BUCKETS):
        least = [least[0], *(min([least[end], *grouped(end)]) for end in range(1, len(least)))]
    _, edges = least[-1]
    return {length: min(edge for edge in edges if edge >= length) for length in ordered}


def _work(cell: Cell, examples: int, length: int) -> float:
    """About how long all models and variants take for one length, compiling one program taken as 1 (measured on 2 cores)."""
    model, tokens = cell.model, cell.task.input_length(length)
    products = model.width * tokens * (4 * model.width + 2 * model.hidden + 2 * tokens) * model.num_layers
    return products * examples * len(cell.method.all_variants) * len(cell.seeds) / 1e11


def _padded(cell: Cell) -> dict[int, int]:
    """What each length of a cell is padded to; lengths with other numbers of examples never share a program."""
    groups: dict[int, list[int]] = {}
    for length, examples in cell.evaluate.examples_by_length.items():
        groups.setdefault(examples, []).append(length)
    found = [buckets(tuple(lengths), partial(_work, cell, examples)) for examples, lengths in groups.items()]
    return {length: edge for group in found for length, edge in group.items()}


@partial(jax.jit, static_argnames=("task", "examples", "max_length"))
def fixed_batch(task: Task, length: jax.Array | int, *, examples: int, max_length: int) -> Batch:
    """The test examples of one length.

    Their random key is a function of the task's class name, its `string_options` and the length, and of nothing else.
    """
    determining = {"type": type(task).__name__, **{name: to_json(value) for name, value in task.string_options.items()}}
    digest = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()
    key = jax.random.fold_in(jax.random.key(int(digest[:8], 16) >> 1), length)
    return task.sample(key, jnp.full(examples, length, jnp.int32), max_length=max_length)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a compiled program is made for: everything but the length, the variant's scaling and the parameters.

    Attributes:
      task, examples, max_length: make the test examples, and how far they are padded.
      model, encoder: what was trained.
      policy: gives the positions.
      replicas: how many.
      metrics: what is measured besides the task's metrics.
    """

    task: Task
    examples: int
    max_length: int
    model: ModelConfig
    encoder: Encoder
    policy: Policy
    replicas: int
    metrics: tuple[Metric, ...] = ()


@partial(jax.jit, static_argnames=("program",))
def count_replicas(models: tuple[Params, Prepared], length: jax.Array, *, program: Program) -> Measured:
    """Measures all replicas on the test examples of one length.

    Args:
      models: the parameters, and what the variant's encoder prepares, with a leading replica axis.
      length: int32 [], symbols of each test example.
      program: everything else.

    Returns:
      For each metric its sum and its count over the test examples, both [S].
    """
    task, config = program.task, program.model
    _, apply = functional(config, task.vocabulary, program.encoder)

    def run(model: tuple[Params, Prepared], length: jax.Array) -> Measured:
        params, prepared = model
        batch = fixed_batch(task, length, examples=program.examples, max_length=program.max_length)
        input_length = task.input_length(length)
        key = jax.random.fold_in(jax.random.key(_POSITIONS_KEY), input_length)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(program.examples))
        size = sizes.rows(task.input_length(program.max_length), hidden=config.hidden, num_heads=config.num_heads)

        def measure_micro_batch(inputs: tuple[tuple[Batch, jax.Array], jax.Array]) -> Measured:
            (batch, keys), real = inputs
            real = real[:, None]
            batch = batch._replace(loss_mask=batch.loss_mask & real, answer_mask=batch.answer_mask & real)
            positions = replace(token_positions(task, program.policy, keys, batch), length=input_length)
            logits = apply(params, batch.tokens, positions, prepared, scan_layers=True)
            return {metric.name: _measure(metric, logits, batch) for metric in (*task.metrics, *program.metrics)}

        by_micro_batch = jax.lax.map(measure_micro_batch, sizes.cut((batch, keys), size))
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), by_micro_batch)

    return over_replicas(run, program.replicas)(models, length)


def _measure(metric: Metric, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """What a metric measures, if that is a sum and a count."""
    measured = metric.measure(logits, batch)
    if not isinstance(measured, tuple) or [jnp.shape(value) for value in measured] != [(), ()]:
        raise ValueError(
            f"{type(metric).__name__}.measure must return a tuple of two scalars, a sum and a count over the examples, "
            f"got {jax.tree.map(jnp.shape, measured)}; add up over the batch"
        )
    return measured


def evaluate(cell: Cell, params: Params, diverged_at: np.ndarray) -> Iterator[list[dict[str, Any]]]:
    """Evaluates a trained cell.

    Args:
      cell: what was trained.
      params: of all seeds, with a leading replica axis.
      diverged_at: int [S], from the TrainState.

    Yields:
      For every variant and length, in the config's order, the rows of all seeds: one dict each, a line of rows.jsonl.
    """
    replicas = len(cell.seeds)
    padded = _padded(cell)
    for variant in cell.method.all_variants:
        for length, examples in cell.evaluate.examples_by_length.items():
            program = Program(
                task=cell.task,
                examples=examples,
                max_length=padded[length],
                model=cell.model,
                encoder=cell.method.encoder,
                policy=variant.policy,
                replicas=replicas,
                metrics=cell.evaluate.metrics,
            )
            prepared = _prepare(cell, variant.encoder, params, length)
            measured = jax.device_get(count_replicas((params, prepared), np.int32(length), program=program))
            by_seed = [jax.tree.map(lambda x, i=i: x[i].item(), measured) for i in range(replicas)]
            yield [
                _row(cell, variant, seed, length, examples, values, int(diverged))
                for seed, values, diverged in zip(cell.seeds, by_seed, diverged_at, strict=True)
            ]


def _prepare(cell: Cell, encoder: Encoder, params: Params, length: int) -> Prepared:
    """What a variant's encoder prepares for examples of `length` symbols, of every replica.

    Where the length is read, that is done on the host, replica by replica: what is not learned then has the full precision that
    encoders have there, and no program is made for a length.
    """
    learned, dims = encoding_params(params), cell.model.dims
    if jax.tree.leaves(learned) and not encoder.needs_length:
        return _prepare_learned(learned, encoder=encoder, dims=dims)
    of_replicas = jax.device_get(learned)
    each = [
        jax.device_get(encoder.prepare(jax.tree.map(lambda x, i=i: x[i], of_replicas), cell.task.input_length(length), dims))
        for i in range(len(cell.seeds))
    ]
    return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *each), replica_sharding(len(cell.seeds)))


@partial(jax.jit, static_argnames=("encoder", "dims"))
def _prepare_learned(learned: Params, *, encoder: Encoder, dims: Dims) -> Prepared:
    return jax.vmap(lambda params: encoder.prepare(params, None, dims))(learned)


def _row(
    cell: Cell, variant: Run, seed: int, length: int, examples: int, measured: dict[str, tuple[float, int]], diverged_at: int
) -> dict[str, Any]:
    ok = diverged_at < 0
    names = [metric.name for metric in (*cell.task.metrics, *cell.evaluate.metrics)]
    row = {
        "task": cell.task.name,
        "task_options": options(cell.task),
        "encoder": type(cell.method.encoder).__name__,
        "encoder_options": options(cell.method.encoder),
        "policy": type(cell.method.policy).__name__,
        "policy_options": options(cell.method.policy),
        "variant_policy": label(variant.policy),
        "policy_presumes": list(variant.policy.presumes),
        "variant": variant.name,
        "variant_options": options(variant.encoder),
        "needs_length": variant.encoder.needs_length,
        "seed": seed,
        "train_steps": cell.train.steps,
        "train_length": cell.train.max_length,
        "length": length,
        "status": "ok" if ok else "diverged",
        "count": examples,
        **{name: _fraction(*measured[name]) if ok else None for name in names},
    }
    return row if ok else row | {"diverged_at": diverged_at}


def _fraction(total: float, count: float) -> float | None:
    """total / count; None where nothing was counted."""
    return total / count if count else None
