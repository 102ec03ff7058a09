"""Accuracy by length: every variant of one trained model, on the same fixed test examples.

A variant enters the compiled program as arrays (what its encoder prepares), so that all variants share it; lengths are padded to
a few buckets, so that all lengths in one share it too. Teacher forcing is enough: every predicted token of y and EOS is right
exactly if greedy decoding, which then reads those same tokens, gives the exact answer.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.config import Cell, ModelConfig, Run
from rope_jax.devices import over_replicas, replica_sharding
from rope_jax.encoders.base import Encoder, Params, Prepared
from rope_jax.forms import content_hash, label, options, to_json
from rope_jax.metrics import Counts, count
from rope_jax.model import encoding_params, functional
from rope_jax.policies import Policy
from rope_jax.tasks.base import Batch, Task

TOKENS_A_PASS = 16_384  # bounds the memory of one forward pass
_POSITIONS_KEY = 230_516  # test positions are drawn from this key, the length and the example alone


def buckets(lengths: tuple[int, ...]) -> dict[int, int]:
    """What each length is padded to: the longest; then the longest of those at most half as long; and so on."""
    padded: dict[int, int] = {}
    edge = 0
    for length in sorted(lengths, reverse=True):
        if not edge or 2 * length <= edge:
            edge = length
        padded[length] = edge
    return padded


@partial(jax.jit, static_argnames=("task", "examples", "max_length"))
def _sample(key: jax.Array, length: jax.Array, *, task: Task, examples: int, max_length: int) -> Batch:
    return task.sample(key, jnp.full(examples, length, jnp.int32), max_length=max_length)


def fixed_batch(task: Task, length: int, *, examples: int, max_length: int) -> Batch:
    """The test examples of one length: a function of the task, the length and nothing else; their strings, not of the format."""
    drawn = {name: value for name, value in to_json(task).items() if name != "end_marker"}
    key = jax.random.key(int(content_hash(drawn)[:8], 16) >> 1)
    return _sample(jax.random.fold_in(key, length), length, task=task, examples=examples, max_length=max_length)


def _passes(batch: Batch) -> tuple[Batch, jax.Array]:
    """[N, ...] as [passes, rows, ...], few enough rows a pass; the last is filled up with examples that ask for nothing.

    Beside the examples comes the number of each, int32 [passes, rows].
    """
    examples, length = batch.tokens.shape
    rows = min(examples, max(1, TOKENS_A_PASS // length))
    passes = -(-examples // rows)
    rows = -(-examples // passes)

    def cut(x: jax.Array) -> jax.Array:
        filled = jnp.pad(x, [(0, passes * rows - examples)] + [(0, 0)] * (x.ndim - 1))
        return filled.reshape(passes, rows, *x.shape[1:])

    return jax.tree.map(cut, (batch, jnp.arange(examples)))


@partial(jax.jit, static_argnames=("model", "vocabulary", "encoder", "policy", "replicas"))
def count_replicas(
    own: tuple[Params, Prepared],
    batch: Batch,
    *,
    model: ModelConfig,
    vocabulary: int,
    encoder: Encoder,
    policy: Policy,
    replicas: int,
) -> Counts:
    """Counts of every replica on one batch of a single length.

    Args:
      own: parameters and what the variant's encoder prepared, with a leading replica axis.
      batch: of one length, the same for all replicas.
      model, vocabulary, encoder: what was trained.
      policy: gives the positions.
      replicas: how many.

    Returns:
      Counts with fields int32 [S].
    """
    _, apply = functional(model, vocabulary, encoder)

    def run(own: tuple[Params, Prepared], passes: tuple[Batch, jax.Array]) -> Counts:
        params, prepared = own

        def one_pass(pass_: tuple[Batch, jax.Array]) -> Counts:
            part, numbers = pass_
            length = part.lengths[0]
            key = jax.random.fold_in(jax.random.key(_POSITIONS_KEY), length)
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)
            positions = replace(policy.positions(keys, part), length=length)
            return count(apply(params, part.tokens, positions, prepared), part)

        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.lax.map(one_pass, passes))

    return over_replicas(run, replicas)(own, _passes(batch))


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
    padded = buckets(cell.evaluate.lengths)
    batches = {
        length: fixed_batch(cell.task, length, examples=examples, max_length=padded[length])
        for length, examples in cell.evaluate.examples_by_length.items()
    }
    for variant in cell.method.all_variants:
        for length in cell.evaluate.lengths:
            counts = count_replicas(
                (params, _prepare(cell, variant, params, length)),
                batches[length],
                model=cell.model,
                vocabulary=cell.task.vocabulary,
                encoder=cell.method.encoder,
                policy=variant.policy,
                replicas=replicas,
            )
            by_seed = [Counts(*found) for found in np.stack(jax.device_get(counts), axis=1).tolist()]
            yield [
                _row(cell, variant, seed, length, found, int(diverged))
                for seed, found, diverged in zip(cell.seeds, by_seed, diverged_at, strict=True)
            ]


def _prepare(cell: Cell, variant: Run, params: Params, length: int) -> Prepared:
    """What the variant's encoder prepares for examples of `length` symbols, of every replica."""
    input_length = cell.task.input_length(length)
    prepare = partial(variant.encoder.prepare, length=input_length, dims=cell.model.dims)
    prepared = jax.vmap(prepare, axis_size=len(cell.seeds))(encoding_params(params))
    return jax.device_put(prepared, replica_sharding(len(cell.seeds)))


def _row(cell: Cell, variant: Run, seed: int, length: int, counts: Counts, diverged_at: int) -> dict[str, Any]:
    ok = diverged_at < 0
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
        "count": counts.examples,
        "exact_match": counts.exact / counts.examples if ok else None,
        "token_accuracy": counts.right / counts.tokens if ok else None,
        "content_error": counts.content_wrong / counts.examples if ok else None,
        "end_error": counts.end_wrong / counts.examples if ok else None,
    }
    return row if ok else row | {"diverged_at": diverged_at}
