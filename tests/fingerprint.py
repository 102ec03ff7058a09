"""SHA-256 of everything that the package draws; as a program it prints them as JSON, under the flags of its environment."""

import hashlib
import json
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from examples import DIMS, ENCODERS, POLICIES

import rope_jax as rj
from rope_jax.model.dropout import Dropout
from rope_jax.optimizers import SGD, AdamW, Constant, WarmupCosine
from rope_jax.policies import Contiguous, Randomized
from rope_jax.study.config import Cell, Experiment, Method, Variant
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse
from rope_jax.training.evaluate import evaluate, fixed_batch
from rope_jax.training.train import draw_batch, draw_lengths, fit, init_state


def digest(tree: Any) -> str:
    """The SHA-256 of the shapes, dtypes and bits of all arrays of a tree."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode() + array.tobytes())
    return sha.hexdigest()


def strings() -> dict[str, Any]:
    """Test examples of several tasks, lengths and paddings."""
    tasks = (Copy(), Copy(alphabet=3, end_marker=True), Reverse(alphabet=11, unique=True))
    return {
        f"{task.name} {task.string_options} {length} {padding}": fixed_batch(
            task, np.int32(length), examples=5, max_length=padding
        )
        for task in tasks
        for length, padding in ((1, 1), (3, 3), (3, 6), (6, 11))
    }


def positions() -> dict[str, Any]:
    """Positions of every policy, and of the functions that draw them, with and without padding."""
    task = Copy(alphabet=4, end_marker=True)
    keys = jnp.array([[0, 7], [5, 2**32 - 1], [1, 1]], jnp.uint32)  # words, which no flag changes
    found = {}
    for size in (4, 6):
        batch = task.sample(keys[0], jnp.array([1, 4, 3], jnp.int32), max_length=size)
        for policy in POLICIES:
            given = policy.positions(keys, batch)
            found[f"{policy} {size}"] = (given.query, given.length)
    for name in ("random_offset", "randomized", "random_float", "pose"):
        draw = partial(getattr(rj.positions, name), max_position=20)
        found[name] = draw(keys[0], jnp.array([[3, 5], [8, 0]], jnp.int32), 8)
    return found


def training(cell: Cell) -> dict[str, Any]:
    """Lengths, examples, weights and dropout of training."""
    keys = jnp.array([[3, 2**32 - 1]], jnp.uint32)
    x = jnp.ones((1, 2, 6, 8), jnp.float32)
    seed, step = jnp.uint32(2**32 - 5), jnp.int32(3)
    by_batch = replace(cell, train=replace(cell.train, length_draw="batch"))
    return {
        "lengths": [draw_lengths(step, each.train) for each in (cell, by_batch)],
        "batch": jax.jit(lambda seed, step: draw_batch(seed, step, cell))(seed, step),
        "weights": jax.jit(lambda seed: init_state(seed, cell).params)(seed),
        "encoders": {f"{i} {encoder}": encoder.init(jnp.array([0, 5], jnp.uint32), DIMS) for i, encoder in enumerate(ENCODERS)},
        "dropout": [Dropout(keys=keys, rate=0.3)(x, 2, generator=generator) for generator in ("counter", "threefry")],
    }


def cell(**options: Any) -> Cell:
    """A cell that learns for a few steps, with everything that draws and everything that computes in floats."""
    train = {"steps": 6, "batch_size": 6, "max_length": 4, "dropout": 0.2, "schedule": WarmupCosine(warmup_steps=2)}
    return Experiment(
        name="fingerprint",
        tasks=(Reverse(alphabet=5),),
        methods=(
            Method(
                encoder=rj.Compose(rj.RoPE(learn_base=True), rj.T5Bias()),
                policy=Randomized(max_position=40),
                variants=(Variant(name="contiguous", policy=Contiguous()),),
            ),
        ),
        model=ModelConfig(num_layers=2, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(**{**train, **options}),
        evaluate=EvaluateConfig(lengths=(2, 4, 6), examples=12),
        seeds=(0, 3),
    ).cells()[0]


def whole(made: Cell) -> dict[str, Any]:
    """Losses, parameters and rows of a trained and evaluated cell."""
    reached = list(fit(made))
    rows = [row for rows in evaluate(made, reached[-1].state.params, np.asarray(reached[-1].state.diverged_at)) for row in rows]
    return {
        "losses": [progress.losses for progress in reached],
        "state": reached[-1].state,
        "rows": np.frombuffer(json.dumps(rows).encode(), np.uint8),
    }


def digests(*, trained: bool = False) -> dict[str, str]:
    """The SHA-256 of what is drawn, by its name; `trained` adds whole trainings, which take longer."""
    found = {**strings(), **positions(), **training(cell())}
    if trained:
        found["adamw"] = whole(cell(optimizer=AdamW(weight_decay=0.1)))
        found["sgd"] = whole(cell(optimizer=SGD(nesterov=True), schedule=Constant(warmup_steps=2), dropout=0.0))
    return {name: digest(value) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(digests(trained="--trained" in sys.argv)))
