"""Accuracy by length: every variant of one trained model, on the same fixed test examples.

A variant enters the compiled program as arrays (what its encoder prepares), so that all variants share it; lengths are padded to
a few buckets, so that all lengths in one share it too. Teacher forcing is enough: every predicted token of y and EOS is right
exactly if greedy decoding, which then reads those same tokens, gives the exact answer.
"""

import itertools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.encoders._internal import random
from rope_jax.encoders.base import Dims, Encoder, Params, Prepared
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.model import block_sizes
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.policies import Policy
from rope_jax.study.config import Cell, ResolvedVariant
from rope_jax.study.rows import row
from rope_jax.study.serialization import json_hash
from rope_jax.study.settings import EvaluateConfig, ModelConfig
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.tasks.metrics import Metric
from rope_jax.training import devices, microbatch
from rope_jax.training.devices import ONE_CORE, default_flags, over_replicas, replica_sharding
from rope_jax.training.processes import fetch
from rope_jax.training.token_positions import token_positions

MAX_SHARED_WORK = 0.03  # of compiling a program: lengths of less work than this share one
MAX_PADDED_WORK = 1.0  # a length of more work has a program of its own

_POSITIONS_KEY = 230_516  # test positions are drawn from this key, the length and the example alone

Measured = dict[str, tuple[jax.Array, jax.Array]]  # the sum and the count of each metric, by its name


def _work(task: Task, model: ModelConfig, examples: int, length: int) -> float:
    """About how long one model takes for one length, where compiling one program is 1 (measured on 2 cores)."""
    tokens = task.input_length(length)
    products = model.width * tokens * (4 * model.width + 2 * model.hidden + 2 * tokens) * model.num_layers
    return products * examples / 1e11


def _rung(length: int) -> int:
    """The least of 8, 12, 16, 24, 32, 48, ... that is not below `length`."""
    return next(rung << octave for octave in itertools.count() for rung in (8, 12) if rung << octave >= length)


def _padded_length(cell: Cell, variant: ResolvedVariant, length: int, examples: int) -> int:
    """What a length is padded to, so that lengths share programs: a rung of a fixed ladder.

    Lengths up to twice the training length that cost little beside compiling share the first rung. A length that costs about as
    much as compiling is not padded. Padding stops where the encoder or the policy has no more positions. Nothing of what else is
    measured enters: padding changes rounding, and a measurement does not depend on its company.
    """
    work = partial(_work, cell.task, cell.model, examples)
    if work(length) >= MAX_PADDED_WORK:
        return length
    rung, largest_shared = _rung(length), _rung(2 * cell.train.max_length)
    while rung < largest_shared and work(_rung(rung + 1)) <= MAX_SHARED_WORK:
        rung = _rung(rung + 1)
    possible, impossible = length, rung + 1
    while possible + 1 < impossible:
        tried = rung if impossible > rung else (possible + impossible) // 2
        possible, impossible = (tried, impossible) if _is_possible(cell, variant, tried) else (possible, tried)
    return possible


def _is_possible(cell: Cell, variant: ResolvedVariant, length: int) -> bool:
    """Whether a variant can be measured on a length, by the checks of a config."""
    method = replace(cell.method, encoder=variant.encoder, policy=variant.policy, variants=())
    try:
        replace(cell, method=method, evaluate=EvaluateConfig(lengths=(length,)))
    except ValueError:
        return False
    return True


@partial(jax.jit, static_argnames=("task", "examples", "max_length"))
def fixed_batch(task: Task, length: jax.Array | int, *, examples: int, max_length: int) -> Batch:
    """The test examples of one length.

    Their random key is a function of the task's class name, its `string_options` and the length, and of nothing else.
    """
    digest = json_hash({"type": type(task).__name__, **task.string_options})
    key = random.fold_in(random.key(int(digest[:8], 16) >> 1), length)
    return task.sample(key, jnp.full(examples, length, jnp.int32), max_length=max_length)


@cache
def share_distinct(task: Task, length: int, *, examples: int, max_length: int) -> float:
    """The share of different examples among the test examples of one length; those of a short length or alphabet repeat."""
    with default_flags():
        batch = jax.device_get(fixed_batch(task, np.int32(length), examples=examples, max_length=max_length))
    return len(np.unique(np.concatenate([batch.tokens, batch.targets], axis=1), axis=0)) / examples


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a compiled program is made for: everything but the length, the variant's scaling and the parameters.

    Attributes:
      task, examples, max_length: make the test examples, and how far they are padded.
      model, encoder: what was trained.
      policy: gives the positions.
      replicas: how many.
      devices_per_seed: how many devices compute each of them together.
      implementation: how the model is computed.
      metrics: what is measured besides the task's metrics.
    """

    task: Task
    examples: int
    max_length: int
    model: ModelConfig
    encoder: Encoder | Layers
    policy: Policy
    replicas: int
    devices_per_seed: int = 1
    implementation: Implementation = Implementation(scan_layers=True)
    metrics: tuple[Metric, ...] = ()


@partial(jax.jit, static_argnames=("program",), compiler_options=ONE_CORE)
def measure_replicas(models: tuple[Params, Prepared], length: jax.Array, *, program: Program) -> Measured:
    """Measures all replicas on the test examples of one length.

    Args:
      models: the parameters, and what the variant's encoder prepares, with a leading replica axis.
      length: int32 [], symbols of each test example.
      program: everything else.

    Returns:
      For each metric its sum and its count over the test examples, both [S].
    """
    task, config = program.task, program.model
    budget = block_sizes.activation_bytes(together=devices.together(program.replicas, program.devices_per_seed))
    implementation = replace(program.implementation, activation_bytes=budget)
    _, apply = functional(config, task.vocabulary, program.encoder, implementation=implementation)

    def run(model: tuple[Params, Prepared], length: jax.Array) -> Measured:
        params, prepared = model
        batch = fixed_batch(task, length, examples=program.examples, max_length=program.max_length)
        input_length = task.input_length(length)
        keys = random.keys_of(random.fold_in(random.key(_POSITIONS_KEY), input_length), program.examples)
        padded = task.input_length(program.max_length)
        size = microbatch.micro_batch_size(padded, hidden=config.hidden, num_heads=config.num_heads, budget=budget)

        def measure_micro_batch(inputs: tuple[tuple[Batch, jax.Array], jax.Array]) -> Measured:
            (batch, keys), real = inputs
            real = real[:, None]
            batch = batch._replace(loss_mask=batch.loss_mask & real, answer_mask=batch.answer_mask & real)
            positions = replace(token_positions(task, program.policy, keys, batch), length=input_length)
            logits = apply(params, batch.tokens, positions, prepared)
            return {metric.name: _measure(metric, logits, batch) for metric in (*task.metrics, *program.metrics)}

        micro_batches = microbatch.split_batch((batch, keys), size, devices_per_seed=program.devices_per_seed)
        by_micro_batch = jax.lax.map(measure_micro_batch, micro_batches)
        sums = jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), by_micro_batch)
        return devices.added_up(sums, program.devices_per_seed)

    return over_replicas(run, program.replicas, program.devices_per_seed)(models, length)


def _measure(metric: Metric, logits: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """What a metric measures, if that is a sum and a count."""
    measured = metric.measure(logits, batch)
    if not isinstance(measured, tuple) or [jnp.shape(value) for value in measured] != [(), ()]:
        raise ValueError(
            f"{type(metric).__name__}.measure must return a tuple of two scalars, a sum and a count over the examples, "
            f"got {jax.tree.map(jnp.shape, measured)}; add up over the batch"
        )
    if any(jnp.issubdtype(jnp.result_type(value), jnp.complexfloating) for value in measured):
        raise ValueError(
            f"{type(metric).__name__}.measure must return real numbers, got {jax.tree.map(jnp.result_type, measured)}; return, "
            "say, their absolute values"
        )
    return measured


def evaluate(
    cell: Cell,
    params: Params,
    diverged_at: np.ndarray,
    *,
    only: Collection[tuple[str, int]] | None = None,
    devices_per_seed: int = 1,
) -> Iterator[list[dict[str, Any]]]:
    """Evaluates a trained cell.

    Args:
      cell: what was trained.
      params: of all seeds, with a leading replica axis.
      diverged_at: int [S], from the TrainState.
      only: the names of variants, each with a length, to measure; None is all of them. What is measured of one does not depend
        on the others.
      devices_per_seed: how many devices share the examples of each seed, as in `fit`.

    Yields:
      For every variant and length, in the config's order, the rows of all seeds: one dict each, a line of rows.jsonl.

    Raises:
      ValueError: `only` names what the cell does not have.
    """
    replicas = len(cell.seeds)
    names = [metric.name for metric in (*cell.task.metrics, *cell.evaluate.metrics)]
    for variant, programs in _programs(cell, only, devices_per_seed):
        layers = as_layers(variant.encoder)
        reads_length = layers.requirements.length
        prepared = None if reads_length else _prepare(cell, layers, params, None, devices_per_seed)
        for length, program in programs:
            examples = program.examples
            if reads_length:
                prepared = _prepare(cell, layers, params, cell.task.input_length(length), devices_per_seed)
            with default_flags():
                measured = fetch(measure_replicas((params, prepared), np.int32(length), program=program))
            with_as_many = [n for n, count in cell.evaluate.examples_by_length.items() if count == examples]
            distinct = share_distinct(cell.task, length, examples=examples, max_length=max(with_as_many))  # one program for all
            by_seed = [{name: tuple(x[i].item() for x in measured[name]) for name in names} for i in range(replicas)]
            yield [
                row(
                    cell,
                    variant,
                    seed=seed,
                    length=length,
                    examples=examples,
                    distinct=distinct,
                    measured=values,
                    diverged_at=int(diverged),
                )
                for seed, values, diverged in zip(cell.seeds, by_seed, diverged_at, strict=True)
            ]


def _programs(
    cell: Cell, only: Collection[tuple[str, int]] | None, devices_per_seed: int
) -> Iterator[tuple[ResolvedVariant, list[tuple[int, Program]]]]:
    """Each variant with its lengths and the programs that measure it on them; of those in `only`, if that is given."""
    every = {(variant.name, length) for variant in cell.method.all_variants for length in cell.evaluate.lengths}
    for name, length in set(every if only is None else only) - every:
        raise ValueError(
            f"only holds ({name!r}, {length}), which the cell does not measure; add it to the config, or leave it out"
        )
    for variant in cell.method.all_variants:
        programs = [
            (length, _program(cell, variant, length, examples, devices_per_seed))
            for length, examples in cell.evaluate.examples_by_length.items()
            if only is None or (variant.name, length) in only
        ]
        if programs:
            yield variant, programs


def _program(cell: Cell, variant: ResolvedVariant, length: int, examples: int, devices_per_seed: int) -> Program:
    return Program(
        task=cell.task,
        examples=examples,
        max_length=_padded_length(cell, variant, length, examples),
        model=cell.model,
        encoder=cell.method.encoder,
        policy=variant.policy,
        replicas=len(cell.seeds),
        devices_per_seed=devices_per_seed,
        metrics=cell.evaluate.metrics,
    )


def check_evaluation(cell: Cell, *, only: Collection[tuple[str, int]] | None = None, devices_per_seed: int = 1) -> None:
    """Traces every program of a cell's evaluation and makes up rows, so that errors come before training.

    Evaluation uses the traces again.

    Args:
      cell: what will be trained.
      only, devices_per_seed: as for `evaluate`.

    Raises:
      Exception: whatever the task, a policy, an encoder or a metric raises for these shapes.
    """
    dims, replicas = cell.model.dims, len(cell.seeds)
    init, _ = functional(cell.model, cell.task.vocabulary, cell.method.encoder)
    params = jax.eval_shape(lambda: init(random.key(0)))

    def stacked(one: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((replicas, *one.shape), one.dtype, sharding=replica_sharding(replicas, devices_per_seed))

    for variant, programs in _programs(cell, only, devices_per_seed):
        layers = as_layers(variant.encoder)
        for length, program in programs:
            current = cell.task.input_length(length) if layers.requirements.length else None
            prepared = jax.eval_shape(partial(layers.prepare, length=current, dims=dims), encoding_params(params))
            models = jax.tree.map(stacked, (params, prepared))
            measured = measure_replicas.eval_shape(models, np.int32(length), program=program)
        counts = dict.fromkeys(measured, (0.0, 1.0))
        # a row, as `evaluate` makes and writes them
        json.dumps(row(cell, variant, seed=0, length=length, examples=1, distinct=1.0, measured=counts, diverged_at=-1))


@default_flags()
def _prepare(cell: Cell, layers: Layers, params: Params, length: int | None, devices_per_seed: int) -> Prepared:
    """What the encoders of a variant prepare for every replica, for examples of `length` input positions; None if they read none.

    Where they read the length, this is done on the host, replica by replica. What is not learned then has the full precision that
    encoders have there, and no program is compiled for a length.
    """
    learned, dims = encoding_params(params), cell.model.dims
    if jax.tree.leaves(learned) and length is None:
        return _prepare_learned(learned, layers=layers, dims=dims, devices_per_seed=devices_per_seed)
    learned = fetch(learned)
    each = [
        jax.device_get(layers.prepare(jax.tree.map(lambda x, i=i: x[i], learned), length, dims)) for i in range(len(cell.seeds))
    ]
    return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *each), replica_sharding(len(cell.seeds), devices_per_seed))


@partial(jax.jit, static_argnames=("layers", "dims", "devices_per_seed"), compiler_options=ONE_CORE)
def _prepare_learned(learned: Params, *, layers: Layers, dims: Dims, devices_per_seed: int) -> Prepared:
    replicas = jax.tree.leaves(learned)[0].shape[0]
    return over_replicas(lambda params, _: layers.prepare(params, None, dims), replicas, devices_per_seed)(learned, ())
