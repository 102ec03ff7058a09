"""Training: a functional state, one step, and a loop over compiled chunks of steps; all seeds of a cell at once.

Randomness is derived, never threaded: step s of a seed draws from fold_in(seed key, s), so that a resumed run equals an
uninterrupted one, bit for bit.
"""

import time
from collections.abc import Callable, Iterator
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
from rope_jax.training.devices import ONE_CORE, default_flags, over_replicas, replica_sharding, whole_sharding
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan, split_sorted, sum_over_micro_batches
from rope_jax.training.numbers import Numbers, join_numbers, split_numbers
from rope_jax.training.processes import everywhere, fetch, largest
from rope_jax.training.token_positions import token_positions

MAX_CHUNK = 100  # optimiser steps in one call of the compiled program
CHUNK_SECONDS = 1.0  # that a call should take at most; a request to stop waits for two

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


@partial(jax.jit, static_argnames=("cell", "devices_per_seed"), compiler_options=ONE_CORE)
def init_replicas(seeds: jax.Array, numbers: Numbers, *, cell: Cell, devices_per_seed: int = 1) -> TrainState:
    """The states of all seeds before the first step, stacked and laid out over the devices.

    Args:
      seeds: uint32 [S].
      numbers, cell: from `split_numbers`.
      devices_per_seed: as in `fit`.
    """

    def run(seed: jax.Array, numbers: Numbers) -> TrainState:
        return init_state(seed, join_numbers(cell, numbers))

    return over_replicas(run, seeds.shape[0], devices_per_seed)(seeds, numbers)


@partial(jax.jit, static_argnames=("cell", "plan"), donate_argnames=("state",), compiler_options=ONE_CORE)
def train_chunk(
    state: TrainState, seeds: jax.Array, numbers: Numbers, start: jax.Array, steps: jax.Array, *, cell: Cell, plan: MicrobatchPlan
) -> tuple[TrainState, jax.Array]:
    """Some steps of all seeds in one compiled program.

    Args:
      state: of all seeds; consumed.
      seeds: uint32 [S].
      numbers, cell: from `split_numbers`.
      start: int32 [], optimiser steps done before.
      steps: int32 [], how many to do; at most MAX_CHUNK. One program serves any number.
      plan: from `microbatch_plan`.

    Returns:
      The next state, and the losses of the steps, float32 [S, MAX_CHUNK], zeros after them.
    """

    def run(replica: tuple[TrainState, jax.Array], shared: tuple[jax.Array, jax.Array, Numbers]) -> tuple[TrainState, jax.Array]:
        (state, seed), (start, steps, numbers) = replica, shared
        whole = join_numbers(cell, numbers)

        def step(i: jax.Array, carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
            state, losses = carry
            state, value = train_step(state, seed, start + i, whole, plan)
            return state, losses.at[i].set(value)

        return jax.lax.fori_loop(0, steps, step, (state, jnp.zeros(MAX_CHUNK, jnp.float32)))

    return over_replicas(run, seeds.shape[0], plan.devices_per_seed)((state, seeds), (start, steps, numbers))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where training stands after a chunk of steps.

    Attributes:
      step: optimiser steps done.
      losses: float32 [S], the mean over the chunk.
      seconds: what the chunk took, without compiling.
      state: of all seeds, at the last step and where it was wanted; else None. The next chunk consumes it.
    """

    step: int
    losses: np.ndarray
    seconds: float
    state: TrainState | None


def fit(
    cell: Cell,
    state: TrainState | None = None,
    *,
    wanted: Callable[[int], bool] = lambda step: False,
    devices_per_seed: int = 1,
) -> Iterator[Progress]:
    """Trains all seeds of a cell from the beginning, or from a state on; yields after every chunk.

    A chunk starts before the losses of the one before it are read, so that the devices need not wait for the host. Chunks are
    short, so that training can stop soon. Results do not depend on them.

    Args:
      cell: what to train.
      state: from `Progress` or a checkpoint; consumed. None is the beginning.
      wanted: whether the state after so many steps is wanted, by any process. The next chunk then starts when the caller is done
        with it.
      devices_per_seed: how many devices compute each seed's batch together (data parallel); the others compute other seeds. It
        changes the order of summation.
    """
    replicas, all_steps = len(cell.seeds), cell.train.steps
    seeds = jax.device_put(np.asarray(cell.seeds, np.uint32), replica_sharding(replicas, devices_per_seed))
    plan = microbatch_plan(cell, devices_per_seed=devices_per_seed)
    cell, numbers = split_numbers(cell)
    whole = whole_sharding(replicas, devices_per_seed)
    numbers = jax.device_put(numbers, whole)
    if state is None:
        with default_flags():
            state = init_replicas(seeds, numbers, cell=cell, devices_per_seed=devices_per_seed)
    step = int(fetch(state.step)[0])
    if step >= all_steps:
        return

    def launch(steps: int) -> jax.Array:
        nonlocal state
        start, count = jax.device_put((np.int32(step), np.int32(steps)), whole)
        with default_flags():
            state, losses = train_chunk(state, seeds, numbers, start, count, cell=cell, plan=plan)
        return everywhere(losses)

    def next_steps() -> int:
        slowest = None if seconds_per_step is None else largest(seconds_per_step)
        return chunk_size(slowest, all_steps - step)

    jax.block_until_ready(launch(0))  # compiles
    launched, steps, seconds_per_step = None, 0, None
    free = time.monotonic()  # when the devices had nothing to do
    while step < all_steps:
        if launched is None:
            steps = next_steps()
            launched = launch(steps)
        losses, done, step = launched, steps, step + steps
        keep = step == all_steps or largest(wanted(step)) > 0
        if keep:
            launched = None
        else:
            steps = next_steps()
            launched = launch(steps)
        means = np.mean(np.asarray(losses)[:, :done], axis=1)
        seconds, free = time.monotonic() - free, time.monotonic()
        seconds_per_step = seconds / done
        yield Progress(step=step, losses=means, seconds=seconds, state=state if keep else None)
        if keep:
            free = time.monotonic()


def chunk_size(seconds_per_step: float | None, left: int) -> int:
    """Steps of the next chunk: about CHUNK_SECONDS, if it is known how long a step takes; else 1."""
    steps = 1 if seconds_per_step is None else int(CHUNK_SECONDS / max(seconds_per_step, CHUNK_SECONDS / MAX_CHUNK))
    return min(max(steps, 1), MAX_CHUNK, left)
