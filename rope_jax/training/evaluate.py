"""Accuracy by length: every variant of one trained model, on the same fixed test examples.

A variant enters the compiled program as arrays (what its encoder prepares), so that all variants share it; lengths are padded to
a few buckets, so that all lengths in one share it too. Teacher forcing is enough: every predicted token of y and EOS is right
exactly if greedy decoding, which then reads those same tokens, gives the exact answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.encoders.base import Dims, Encoder, Params, Prepared
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.policies import Policy
from rope_jax.study.config import Cell, ModelConfig, ResolvedVariant
from rope_jax.study.rows import columns
from rope_jax.study.serialization import json_hash, to_json
from rope_jax.tasks.base import Batch, Task
from rope_jax.training import microbatch
from rope_jax.training.devices import over_replicas, replica_sharding
from rope_jax.training.metrics import Counts, count

_POSITIONS_KEY = 230_516  # test positions are drawn from this key, the length and the example alone


def _work(cell: Cell, examples: int, length: int) -> float:
    """About how long all models and variants take for one length, where compiling one program is 1 (measured on 2 cores)."""
    model, tokens = cell.model, cell.task.input_length(length)
    products = model.width * tokens * (4 * model.width + 2 * model.hidden + 2 * tokens) * model.num_layers
    return products * examples * len(cell.method.all_variants) * len(cell.seeds) / 1e11


def _padded_lengths(cell: Cell) -> dict[int, int]:
    """What each length of a cell is padded to; only lengths with equal numbers of examples can share a program."""
    lengths_by_examples: dict[int, list[int]] = {}
    for length, examples in cell.evaluate.examples_by_length.items():
        lengths_by_examples.setdefault(examples, []).append(length)
    padded: dict[int, int] = {}
    for examples, lengths in lengths_by_examples.items():
        buckets = microbatch.bucket_lengths(lengths, partial(_work, cell, examples), compile_cost=1.0)
        padded |= {length: microbatch.padded_length(length, buckets) for length in lengths}
    return padded


@partial(jax.jit, static_argnames=("task", "examples", "max_length"))
def fixed_batch(task: Task, length: jax.Array | int, *, examples: int, max_length: int) -> Batch:
    """The test examples of one length: a function of the task, the length and nothing else; their strings, not of the format."""
    drawn = {name: value for name, value in to_json(task).items() if name != "end_marker"}
    key = jax.random.fold_in(jax.random.key(int(json_hash(drawn)[:8], 16) >> 1), length)
    return task.sample(key, jnp.full(examples, length, jnp.int32), max_length=max_length)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a compiled program is made for: everything but the length, the variant's scaling and the parameters.

    Attributes:
      task, examples, max_length: make the test examples, and how far they are padded.
      model, encoder: what was trained.
      policy: gives the positions.
      replicas: how many.
      implementation: how the model is computed.
    """

    task: Task
    examples: int
    max_length: int
    model: ModelConfig
    encoder: Encoder | Layers
    policy: Policy
    replicas: int
    implementation: Implementation = Implementation(scan_layers=True)


@partial(jax.jit, static_argnames=("program",))
def count_replicas(own: tuple[Params, Prepared], length: jax.Array, *, program: Program) -> Counts:
    """Counts of every replica, int32 [S], on the test examples of one length; `own` has a leading replica axis."""
    task, model = program.task, program.model
    _, apply = functional(model, task.vocabulary, program.encoder, implementation=program.implementation)

    def run(own: tuple[Params, Prepared], length: jax.Array) -> Counts:
        params, prepared = own
        batch = fixed_batch(task, length, examples=program.examples, max_length=program.max_length)
        input_length = task.input_length(length)
        key = jax.random.fold_in(jax.random.key(_POSITIONS_KEY), input_length)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(program.examples))
        padded = task.input_length(program.max_length)
        size = microbatch.micro_batch_size(padded, hidden=model.hidden, num_heads=model.num_heads)
        passes, real = microbatch.split_batch((batch, keys), size)

        def one_pass(pass_: tuple[tuple[Batch, jax.Array], jax.Array]) -> Counts:
            (part, keys), real = pass_
            part = part._replace(loss_mask=part.loss_mask & real[:, None])
            positions = replace(program.policy.positions(keys, part), length=input_length)
            return count(apply(params, part.tokens, positions, prepared), part)

        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.lax.map(one_pass, (passes, real)))

    return over_replicas(run, program.replicas)(own, length)


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
    padded = _padded_lengths(cell)
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
            )
            counts = count_replicas((params, _prepare(cell, variant.encoder, params, length)), np.int32(length), program=program)
            by_seed = [Counts(*found) for found in np.stack(jax.device_get(counts), axis=1).tolist()]
            yield [
                _row(cell, variant, seed, length, found, int(diverged))
                for seed, found, diverged in zip(cell.seeds, by_seed, diverged_at, strict=True)
            ]


def _prepare(cell: Cell, encoder: Encoder | Layers, params: Params, length: int) -> Prepared:
    """What the encoders of a variant prepare for examples of `length` symbols, for every replica.

    Where they read the length, this is done on the host, replica by replica. What is not learned then has the full precision that
    encoders have there, and no program is compiled for a length.
    """
    layers = as_layers(encoder)
    learned, dims = encoding_params(params), cell.model.dims
    if jax.tree.leaves(learned) and not layers.requirements.length:
        return _prepare_learned(learned, layers=layers, dims=dims)
    learned = jax.device_get(learned)
    each = [
        jax.device_get(layers.prepare(jax.tree.map(lambda x, i=i: x[i], learned), cell.task.input_length(length), dims))
        for i in range(len(cell.seeds))
    ]
    return jax.device_put(jax.tree.map(lambda *x: np.stack(x), *each), replica_sharding(len(cell.seeds)))


@partial(jax.jit, static_argnames=("layers", "dims"))
def _prepare_learned(learned: Params, *, layers: Layers, dims: Dims) -> Prepared:
    return jax.vmap(lambda params: layers.prepare(params, None, dims))(learned)


def _row(cell: Cell, variant: ResolvedVariant, seed: int, length: int, counts: Counts, diverged_at: int) -> dict[str, Any]:
    ok = diverged_at < 0
    return {
        **columns(cell, variant),
        "seed": seed,
        "train_steps": cell.train.steps,
        "train_length": cell.train.max_length,
        "length": length,
        **({"status": "ok"} if ok else {"status": "diverged", "diverged_at": diverged_at}),
        "count": counts.examples,
        "exact_match": counts.exact / counts.examples if ok else None,
        "token_accuracy": counts.right / counts.tokens if ok else None,
        "content_error": counts.content_wrong / counts.examples if ok else None,
        "end_error": counts.end_wrong / counts.examples if ok else None,
    }
