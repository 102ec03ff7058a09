"""Training: a functional state, one step, and a loop over compiled chunks of steps; all seeds of a cell at once.

Randomness is derived, never threaded: step s of a seed draws from fold_in(seed key, s), so that a resumed run equals an
uninterrupted one, bit for bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rope_jax.encoders._internal import random
from rope_jax.encoders.base import Params
from rope_jax.encoders.positions import Positions
from rope_jax.model.dropout import Dropout
from rope_jax.model.transformer import Apply, functional
from rope_jax.study.config import Cell
from rope_jax.study.settings import TrainConfig
from rope_jax.tasks.batch import Batch
from rope_jax.training.devices import default_flags, over_replicas, replica_sharding, whole_sharding
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan, split_sorted, sum_over_micro_batches
from rope_jax.training.numbers import Numbers, join_numbers, split_numbers
from rope_jax.training.token_positions import token_positions

_LENGTHS_KEY = 201_706  # lengths are drawn from this key and the step alone, so that they are the same for all replicas
_INIT, _DATA, _POSITIONS, _DROPOUT = 0, 1, 2, 3  # folded into a seed's key, one for each purpose


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state of training; every leaf has a leading replica axis outside the compiled program.

    Attributes:
      step: int32, optimiser steps done.
      params: the model's parameters, float32.
      opt_state: the state of the optimiser, from optax.
      diverged_at: int32, the first step with a loss or new parameters that are not finite; -1 if there is none.
    """

    step: jax.Array
    params: Params
    opt_state: Any
    diverged_at: jax.Array


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """The learning rate as a function of the number of steps done."""
    return config.schedule.learning_rate(config.learning_rate, config.steps)


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """The config's optimiser, on gradients clipped by their global norm."""
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), config.optimizer.transformation(learning_rate(config)))


def loss(
    params: Params,
    batch: Batch,
    positions: Positions,
    *,
    apply: Apply,
    dropout: Dropout | None = None,
    total: jax.Array | None = None,
) -> jax.Array:
    """Mean cross-entropy of the targets under the loss mask, in nats; float32 [].

    The sum is divided by `total`: the number of targets in the whole batch, where this is a micro-batch of it. None counts those
    of `batch`.
    """
    logits = apply(params, batch.tokens, positions, dropout=dropout)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    counted = batch.loss_mask.astype(jnp.float32)
    total = jnp.sum(counted) if total is None else total
    return jnp.sum(losses * counted) / jnp.maximum(total, 1.0)


def draw_lengths(step: jax.Array, config: TrainConfig) -> jax.Array:
    """int32 [batch_size], uniform in min_length .. max_length, the same for every seed."""
    key = random.fold_in(random.key(_LENGTHS_KEY), step)
    shape = (config.batch_size,) if config.length_draw == "example" else ()
    drawn = random.randint(key, shape, config.min_length, config.max_length + 1)
    return jnp.broadcast_to(drawn, (config.batch_size,))


def draw_batch(seed: jax.Array, step: jax.Array, cell: Cell) -> Batch:
    """The examples of a seed's step, padded to the longest training length."""
    lengths = draw_lengths(step, cell.train)
    return cell.task.sample(_step_key(seed, _DATA, step), lengths, max_length=cell.train.max_length)


def _step_key(seed: jax.Array, purpose: int, step: jax.Array) -> jax.Array:
    return random.fold_in(random.fold_in(random.key(seed), purpose), step)


def init_state(seed: jax.Array, cell: Cell) -> TrainState:
    """The state of one seed, uint32 [], before its first step."""
    init, _ = functional(cell.model, cell.task.vocabulary, cell.method.encoder)
    params = init(random.fold_in(random.key(seed), _INIT))
    return TrainState(jnp.int32(0), params, optimizer(cell.train).init(params), jnp.int32(-1))


def loss_and_gradient(
    params: Params, seed: jax.Array, step: jax.Array, cell: Cell, plan: MicrobatchPlan
) -> tuple[jax.Array, Params]:
    """The loss of a step's examples, and its gradient, summed over micro-batches."""
    _, apply = functional(cell.model, cell.task.vocabulary, cell.method.encoder, implementation=plan.implementation)
    lengths, batch = draw_lengths(step, cell.train), draw_batch(seed, step, cell)  # the same draw, which does not use the seed
    keys = random.split(_step_key(seed, _POSITIONS, step), cell.train.batch_size)
    drops = random.bits(_step_key(seed, _DROPOUT, step), (cell.train.batch_size,))
    total = jnp.sum(batch.loss_mask.astype(jnp.float32))
    (batch, keys, drops), real, longest = split_sorted((batch, keys, drops), lengths, plan)
    batch = batch._replace(loss_mask=batch.loss_mask & real[..., None])

    def padded_to(length: int, params: Params, batch: Batch, keys: jax.Array, drops: jax.Array) -> tuple[jax.Array, Params]:
        batch = batch.cut_to(cell.task.input_length(length))
        positions = token_positions(cell.task, cell.method.policy, keys, batch)
        dropout = Dropout(keys=drops, rate=cell.train.dropout) if cell.train.dropout else None
        return jax.value_and_grad(loss)(params, batch, positions, apply=apply, dropout=dropout, total=total)

    zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
    return sum_over_micro_batches(padded_to, params, (batch, keys, drops), longest, plan, zeros)


def train_step(
    state: TrainState, seed: jax.Array, step: jax.Array, cell: Cell, plan: MicrobatchPlan
) -> tuple[TrainState, jax.Array]:
    """One optimiser step of one seed: the next state, and the loss before the step. `step` is `state.step` of every replica."""
    value, gradient = loss_and_gradient(state.params, seed, step, cell, plan)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an int32 power
        updates, opt_state = optimizer(cell.train).update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(params, squared=True))
    first = (state.diverged_at < 0) & ~finite
    return TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        diverged_at=jnp.where(first, state.step, state.diverged_at),
    ), value


@partial(jax.jit, static_argnames=("cell",))
def init_replicas(seeds: jax.Array, numbers: Numbers, *, cell: Cell) -> TrainState:
    """The states of all seeds before the first step, stacked and laid out over the devices.

    Args:
      seeds: uint32 [S].
      numbers, cell: from `split_numbers`.
    """

    def run(seed: jax.Array, numbers: Numbers) -> TrainState:
        return init_state(seed, join_numbers(cell, numbers))

    return over_replicas(run, seeds.shape[0])(seeds, numbers)


@partial(jax.jit, static_argnames=("cell", "steps", "plan"), donate_argnames=("state",))
def train_chunk(
    state: TrainState, seeds: jax.Array, numbers: Numbers, *, cell: Cell, steps: int, plan: MicrobatchPlan
) -> tuple[TrainState, jax.Array]:
    """Some steps of all seeds in one compiled program.

    Args:
      state: of all seeds; consumed.
      seeds: uint32 [S].
      numbers, cell: from `split_numbers`.
      steps: how many optimiser steps.
      plan: from `microbatch_plan`.

    Returns:
      The next state, and the losses, float32 [S, steps].
    """

    def run(replica: tuple[TrainState, jax.Array], shared: tuple[jax.Array, Numbers]) -> tuple[TrainState, jax.Array]:
        (state, seed), (step_numbers, numbers) = replica, shared
        whole = join_numbers(cell, numbers)
        return jax.lax.scan(lambda state, step: train_step(state, seed, step, whole, plan), state, step_numbers)

    return over_replicas(run, seeds.shape[0])((state, seeds), (state.step[0] + jnp.arange(steps, dtype=jnp.int32), numbers))


def chunk_size(steps: int) -> int:
    """Steps in a compiled chunk: 50 to 100, so that all chunks are equal and share one program; 100 where that is impossible."""
    return next((size for size in range(100, 49, -1) if steps % size == 0), 100)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where training stands after a chunk.

    Attributes:
      state: of all seeds; the next chunk consumes it.
      step: optimiser steps done.
      losses: float32 [S], the mean over the chunk.
    """

    state: TrainState
    step: int
    losses: np.ndarray


def fit(cell: Cell, state: TrainState | None = None) -> Iterator[Progress]:
    """Trains all seeds of a cell from the beginning, or from a state on; yields after every chunk."""
    replicas, all_steps = len(cell.seeds), cell.train.steps
    seeds = jax.device_put(np.asarray(cell.seeds, np.uint32), replica_sharding(replicas))
    plan = microbatch_plan(cell)
    cell, numbers = split_numbers(cell)
    numbers = jax.device_put(numbers, whole_sharding(replicas))
    if state is None:
        with default_flags():
            state = init_replicas(seeds, numbers, cell=cell)
    step = int(np.asarray(state.step)[0])
    while step < all_steps:
        steps = min(chunk_size(all_steps), all_steps - step)
        with default_flags():
            state, losses = train_chunk(state, seeds, numbers, cell=cell, steps=steps, plan=plan)
        step += steps
        yield Progress(state=state, step=step, losses=np.mean(np.asarray(losses), axis=1))
