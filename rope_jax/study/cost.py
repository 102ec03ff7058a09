"""What an experiment costs at least: lower bounds of memory and time, from its config alone. Nothing is compiled or computed.

Bounds count what is certain to be there and leave out the rest, so that an experiment which does not fit by them cannot run:
parameters, optimiser state and gradients; a batch; of the activations of one micro-batch, the residual streams, the widest layer,
the logits and the scores. Sizes are Python integers, which do not overflow.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal import random
from rope_jax.encoders.layers import as_layers
from rope_jax.model import block_sizes
from rope_jax.policies import Policy
from rope_jax.study import machine
from rope_jax.study.config import Cell
from rope_jax.study.settings import ModelConfig, TrainConfig
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch
from rope_jax.training import microbatch
from rope_jax.training.devices import replica_mesh, together
from rope_jax.training.token_positions import token_positions
from rope_jax.training.train import optimizer

_FLOAT = 4  # bytes
_BATCH_BYTES_PER_TOKEN = 4 + 4 + 1 + 1  # token, target, two masks
_LEAST_SECONDS_PER_STEP = 1e-5
_LONGEST_SECONDS = 365 * 24 * 3600
_PRODUCTS_PER_STEP = 3  # one forward, two backward
_HELD = frozenset(("sort", "top_k", "dot_general", "scatter", "scatter-add"))  # operations that read their operands from memory


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Lower bounds.

    Attributes:
      bytes: of the memory of a device; CPUs share theirs.
      seconds: of training and evaluation.
      memory: bytes that the device has; None if that is unknown.
    """

    bytes: int
    seconds: float
    memory: int | None

    def __str__(self) -> str:
        memory = f" (the machine has {in_bytes(self.memory)})" if self.memory else ""
        time = f"; at least {in_time(self.seconds)}" if self.seconds >= 60 else ""
        return f"estimate: at least {in_bytes(self.bytes)} of memory{memory}{time}"

    def require_possible(self) -> None:
        """Raises ValueError for what exceeds the memory of the device, or takes more than a year."""
        if self.memory is not None and self.bytes > self.memory:
            raise ValueError(
                f"the experiment needs at least {in_bytes(self.bytes)} of memory, and there are {in_bytes(self.memory)}; use "
                "smaller sizes (model.width, train.batch_size, evaluate.examples, lengths, max_position), or --force to try it"
            )
        if self.seconds > _LONGEST_SECONDS:
            raise ValueError(
                f"the experiment takes at least {in_time(self.seconds)}, even at the highest speed of such a machine; use "
                "smaller sizes or fewer train.steps, or --force to try it"
            )


def estimate(cells: Sequence[Cell]) -> Estimate:
    """The cost of running cells one after the other on the present devices."""
    return Estimate(
        bytes=max(map(cell_bytes, cells)),
        seconds=sum(map(cell_seconds, cells)),
        memory=machine.memory_bytes(),
    )


def num_parameters(cell: Cell) -> int:
    """How many numbers a model of the cell learns."""
    model = cell.model
    layer = _products_per_token(model) // model.num_layers + 2 * model.width
    shared = 2 * cell.task.vocabulary * model.width + model.width
    key = jax.eval_shape(lambda: random.key(0))
    encoding = jax.eval_shape(lambda key: as_layers(cell.method.encoder).init(key, model.dims), key)
    return model.num_layers * layer + shared + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(encoding))


def cell_bytes(cell: Cell) -> int:
    """The least memory that a cell needs on one device, in bytes."""
    resident, at_once = _replicas_per_memory(len(cell.seeds))
    parameters = num_parameters(cell) * _FLOAT
    state = parameters * (1 + _optimizer_share(cell.train))
    working = max(parameters + _training_bytes(cell), _evaluation_bytes(cell))
    return math.ceil(state) * resident + working * at_once


def cell_seconds(cell: Cell) -> float:
    """The least time that a cell takes, in seconds."""
    replicas, variants = len(cell.seeds), len(cell.method.all_variants)
    measuring = sum(measuring_operations(cell, length) for length in cell.evaluate.lengths)
    operations = replicas * (training_operations(cell) + variants * measuring)
    seconds = operations / machine.operations_per_second(min(replicas, replica_mesh(replicas).size))
    return max(seconds, cell.train.steps * _LEAST_SECONDS_PER_STEP)


def training_operations(cell: Cell, steps: int | None = None) -> int:
    """Floating-point operations of training one seed, all steps or some: a multiplication and an addition count as two."""
    train = cell.train
    middle = (train.min_length + train.max_length) // 2
    examples = (train.steps if steps is None else steps) * train.batch_size
    return 2 * _PRODUCTS_PER_STEP * examples * _products(cell, middle)


def measuring_operations(cell: Cell, length: int) -> int:
    """Floating-point operations of one measurement of one seed."""
    return 2 * cell.evaluate.examples_by_length[length] * _products(cell, length)


def _replicas_per_memory(replicas: int) -> tuple[int, int]:
    """How many replicas have their state in one memory, and how many of them are trained at once there."""
    devices = replica_mesh(replicas).size
    return (replicas, devices) if block_sizes.on_cpu() else (-(-replicas // devices),) * 2


def _products_per_token(model: ModelConfig) -> int:
    """Multiplications of a token by the weights of all blocks, which are as many as these weights."""
    return model.num_layers * model.width * (4 * model.width + 2 * model.hidden)


def _products(cell: Cell, length: int) -> int:
    """Multiplications of a forward pass for one example; of a causal task, half of the scores are needed."""
    model, tokens = cell.model, cell.task.input_length(length)
    return tokens * (_products_per_token(model) + model.width * cell.task.vocabulary + model.num_layers * model.width * tokens)


@cache
def _optimizer_share(train: TrainConfig) -> float:
    """The numbers of the optimiser's state for each parameter."""
    matrix = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    state = jax.eval_shape(optimizer(train).init, {"matrix": matrix})
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)) // math.prod(matrix.shape)


def _training_bytes(cell: Cell) -> int:
    """A batch, and the activations of one micro-batch of the longest examples."""
    train, model, task = cell.train, cell.model, cell.task
    size = min(train.batch_size, microbatch.microbatch_plan(cell).micro_batch_size)
    length = task.input_length(train.max_length)
    streams = model.num_layers * size * length * model.width * _FLOAT
    batch = max(train.batch_size * length * _BATCH_BYTES_PER_TOKEN, _drawn_bytes(task, train.batch_size, train.max_length))
    return batch + streams + max(_widest_bytes(cell, size, length), _positions_bytes(task, cell.method.policy, size, length))


def _evaluation_bytes(cell: Cell) -> int:
    """The test examples of the costliest length, and the widest activation of one micro-batch of them."""
    model, task = cell.model, cell.task

    budget = block_sizes.activation_bytes(together=together(len(cell.seeds)))

    def of_length(length: int, examples: int) -> int:
        tokens = task.input_length(length)
        size = min(examples, microbatch.micro_batch_size(tokens, hidden=model.hidden, num_heads=model.num_heads, budget=budget))
        drawn = max(_positions_bytes(task, variant.policy, size, tokens) for variant in cell.method.all_variants)
        batch = max(examples * tokens * _BATCH_BYTES_PER_TOKEN, _drawn_bytes(task, examples, length))
        return batch + max(_widest_bytes(cell, size, tokens), drawn)

    longest = {examples: length for length, examples in sorted(cell.evaluate.examples_by_length.items())}
    return max(of_length(length, examples) for examples, length in longest.items())


def _widest_bytes(cell: Cell, size: int, length: int) -> int:
    """The largest of the activations of a forward pass: of the MLP, the logits or, where they are computed, the scores."""
    model = cell.model
    hidden = model.hidden * jnp.dtype(model.compute_dtype).itemsize
    block = block_sizes.query_block_size(length, length, size * model.num_heads)
    scores = model.num_heads * min(length, block) * _FLOAT if block_sizes.on_cpu() else 0
    return size * length * max(hidden, cell.task.vocabulary * _FLOAT, scores)


def _batch(examples: int, length: int) -> Batch:
    """The shapes of a batch of so many input positions."""

    def shaped(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((examples, length), dtype)

    lengths: Any = jax.ShapeDtypeStruct((examples,), jnp.int32)
    return Batch(shaped(jnp.int32), shaped(jnp.int32), shaped(jnp.bool_), shaped(jnp.bool_), lengths)


@cache
def _positions_bytes(task: Task, policy: Policy, examples: int, length: int) -> int:
    """What a policy holds to choose the positions of a micro-batch."""
    keys = jax.eval_shape(lambda: random.split(random.key(0), examples))
    return _held_bytes(lambda keys, batch: token_positions(task, policy, keys, batch).query, keys, _batch(examples, length))


@cache
def _drawn_bytes(task: Task, examples: int, max_length: int) -> int:
    """What a task holds to draw examples."""
    lengths = jax.ShapeDtypeStruct((examples,), jnp.int32)
    key = jax.eval_shape(lambda: random.key(0))
    return _held_bytes(lambda key, lengths: task.sample(key, lengths, max_length=max_length), key, lengths)


def _held_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """The bytes of the largest array that a function sorts, multiplies or writes to. It is traced, not run."""
    equations = _equations(jax.make_jaxpr(function)(*arguments).jaxpr)
    operands = (variable.aval for each in equations if each.primitive.name in _HELD for variable in (*each.invars, *each.outvars))
    return max((math.prod(array.shape) * array.dtype.itemsize for array in operands), default=0)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The operations of a traced function, those of the functions that it calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def in_bytes(size: int) -> str:
    """Three digits and a unit: "25.3 GB"."""
    return _scaled(size, (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)), "bytes")


def in_time(seconds: float) -> str:
    """Three digits and a unit: "2.5 days"."""
    return _scaled(seconds, (("years", 365 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60)), "seconds")


def _scaled(value: float, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    unit, size = next(((unit, size) for unit, size in units if value >= size), (smallest, 1))
    return f"{value / size:.3g} {unit}"
