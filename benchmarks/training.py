"""What the benchmarks call of `rope_jax.training`: the only module here that knows those functions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from rope_jax.training.evaluate import Program, count_replicas, evaluate

Call = Callable[[], Any]


# How a step is computed: the plan that the package chooses, and plans that leave one mechanism out.

Plan = train.Plan


def chosen_plan(cell: Cell) -> Plan:
    """The plan that the package chooses."""
    return train.plan(cell)


def whole_batch(cell: Cell) -> Plan:
    """The chosen plan, but the whole batch in one forward and one backward pass."""
    return replace(train.plan(cell), rows=cell.train.batch_size)


def one_bucket(cell: Cell) -> Plan:
    """The chosen plan, but every example padded to the longest length."""
    return replace(train.plan(cell), edges=(cell.train.max_length,))


def computed_with(cell: Cell, implementation: Implementation) -> Plan:
    """The chosen plan, but the model computed another way."""
    return replace(train.plan(cell), implementation=implementation)


def num_buckets(plan: Plan) -> int:
    """How many lengths examples are padded to."""
    return len(plan.edges)


# Training


def trainer(cell: Cell, plan: Plan) -> Call:
    """A call that takes one step of all replicas and returns their losses before it, float32 [S, 1]."""
    seeds = _seeds(cell)
    state = train.init_replicas(seeds, cell=cell)
    step = train.train_chunk.lower(state, seeds, cell=cell, steps=1, plan=plan).compile()

    def call() -> np.ndarray:
        nonlocal state
        state, losses = step(state, seeds)
        return np.asarray(losses)

    return call


def lower_training(cell: Cell, plan: Plan) -> Any:
    """The lowered program that trains a cell for 100 steps; it has an abstract input, so nothing is computed."""
    seeds = jax.ShapeDtypeStruct((len(cell.seeds),), np.uint32)
    state = jax.eval_shape(partial(train.init_replicas, cell=cell), seeds)
    return train.train_chunk.lower(state, seeds, cell=cell, steps=100, plan=plan)


def initial_params(cell: Cell) -> Params:
    """The parameters of all replicas before training, with a leading replica axis."""
    return train.init_replicas(_seeds(cell), cell=cell).params


def _seeds(cell: Cell) -> jax.Array:
    return jax.device_put(np.asarray(cell.seeds, np.uint32), devices.replica_sharding(len(cell.seeds)))


# What other implementations of the training step need: the same parameters, examples and optimiser


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """The optimiser's numbers, for implementations without optax.

    Attributes:
      learning_rates: float32 [steps], of every step.
      weight_decay: of parameters with at least two axes.
      clip_norm: largest global norm of the gradient.
    """

    learning_rates: np.ndarray
    weight_decay: float
    clip_norm: float


def adamw(cell: Cell) -> AdamW:
    """The cell's optimiser as numbers."""
    steps = np.arange(cell.train.steps)
    return AdamW(
        learning_rates=np.asarray(train.learning_rate(cell.train)(steps)),
        weight_decay=cell.train.weight_decay,
        clip_norm=cell.train.clip_norm,
    )


def optimizer(cell: Cell) -> optax.GradientTransformation:
    """The cell's optimiser."""
    return train.optimizer(cell.train)


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
    return count_replicas.lower(shapes, np.int32(length), program=program)
