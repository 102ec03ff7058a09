"""What the benchmarks do with `rope_jax.training`: plans, calls that train or evaluate, and lowered programs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from rope_jax.encoders.base import Params
from rope_jax.encoders.layers import as_layers
from rope_jax.model.implementation import Implementation
from rope_jax.study.config import Cell
from rope_jax.tasks import Batch
from rope_jax.training import devices, train
from rope_jax.training.evaluate import Program, evaluate, measure_replicas
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan
from rope_jax.training.numbers import split_numbers

Call = Callable[[], Any]


# How a step is computed: the plan that the package chooses, and plans that leave one mechanism out


def whole_batch(cell: Cell) -> MicrobatchPlan:
    """The chosen plan, but the whole batch in one forward and one backward pass."""
    return replace(microbatch_plan(cell), micro_batch_size=cell.train.batch_size)


def one_bucket(cell: Cell) -> MicrobatchPlan:
    """The chosen plan, but every example padded to the longest length."""
    return replace(microbatch_plan(cell), bucket_lengths=(cell.train.max_length,))


def computed_with(cell: Cell, **options: Any) -> MicrobatchPlan:
    """The chosen plan, but with other options of the `Implementation`."""
    plan = microbatch_plan(cell)
    return replace(plan, implementation=replace(plan.implementation, **options))


# Training


def trainer(cell: Cell, plan: MicrobatchPlan) -> Call:
    """A call that takes one step of all replicas and returns their losses before it, float32 [S, 1]."""
    replicas = len(cell.seeds)
    seeds = jax.device_put(np.asarray(cell.seeds, np.uint32), devices.replica_sharding(replicas))
    cell, numbers = split_numbers(cell)
    numbers = jax.device_put(numbers, devices.whole_sharding(replicas))
    state = train.init_replicas(seeds, numbers, cell=cell)
    start, one = jax.device_put((np.int32(0), np.int32(1)), devices.whole_sharding(replicas))
    step = train.train_chunk.lower(state, seeds, numbers, start, one, cell=cell, plan=plan).compile()

    def call() -> np.ndarray:
        nonlocal state
        state, losses = step(state, seeds, numbers, start, one)
        return np.asarray(losses)[:, :1]

    return call


def lower_training(cell: Cell, plan: MicrobatchPlan) -> Any:
    """The lowered program that trains a cell; it has an abstract input, so nothing is computed."""
    seeds = jax.ShapeDtypeStruct((len(cell.seeds),), np.uint32)
    cell, numbers = split_numbers(cell)
    state = jax.eval_shape(partial(train.init_replicas, cell=cell), seeds, numbers)
    return train.train_chunk.lower(state, seeds, numbers, np.int32(0), np.int32(100), cell=cell, plan=plan)


def initial_params(cell: Cell) -> Params:
    """The parameters of all replicas before training, with a leading replica axis."""
    seeds = jax.device_put(np.asarray(cell.seeds, np.uint32), devices.replica_sharding(len(cell.seeds)))
    return train.init_replicas(seeds, {}, cell=cell).params


# What other implementations of the training step need: the same parameters, examples and optimiser


def optimizer(cell: Cell) -> optax.GradientTransformation:
    """The cell's optimiser."""
    return train.optimizer(cell.train)


def learning_rates(cell: Cell) -> np.ndarray:
    """The learning rate of every step, float32 [steps]."""
    return np.asarray(train.learning_rate(cell.train)(np.arange(cell.train.steps)))


def first_seed_params(cell: Cell) -> Params:
    """The parameters of the first seed before training."""
    return jax.jit(lambda seed: train.init_state(seed, cell).params)(np.uint32(cell.seeds[0]))


def first_seed_batches(cell: Cell, steps: int) -> list[Batch]:
    """The examples of the first seed's first steps."""
    draw = jax.jit(partial(train.draw_batch, cell=cell))
    return [draw(np.uint32(cell.seeds[0]), np.int32(step)) for step in range(steps)]


def abstract_params_and_batch(cell: Cell) -> tuple[Params, Batch]:
    """Shapes and dtypes of one seed's parameters and batch."""
    seed, step = (jax.ShapeDtypeStruct((), dtype) for dtype in (np.uint32, np.int32))
    params = jax.eval_shape(lambda seed: train.init_state(seed, cell).params, seed)
    return params, jax.eval_shape(partial(train.draw_batch, cell=cell), seed, step)


# Evaluation


def evaluate_all(cell: Cell, params: Params) -> None:
    """Computes all rows of a cell whose parameters have a leading replica axis."""
    for _ in evaluate(cell, params, np.full(len(cell.seeds), -1)):
        pass


def lower_evaluation(cell: Cell, implementation: Implementation) -> Any:
    """The lowered program that evaluates the longest training length on 512 examples; nothing is computed."""
    replicas, length = len(cell.seeds), cell.train.max_length
    program = Program(
        task=cell.task,
        examples=512,
        max_length=length,
        model=cell.model,
        encoder=cell.method.encoder,
        policy=cell.method.policy,
        replicas=replicas,
        implementation=implementation,
    )

    def params_and_prepared(seed: jax.Array) -> Any:
        prepared = as_layers(cell.method.encoder).prepare({}, cell.task.input_length(length), cell.model.dims)
        return train.init_state(seed, cell).params, prepared

    shapes = jax.eval_shape(jax.vmap(params_and_prepared), jax.ShapeDtypeStruct((replicas,), np.uint32))
    return measure_replicas.lower(shapes, np.int32(length), program=program)
