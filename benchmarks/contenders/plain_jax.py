"""The same training step as one would first write it in JAX: the contender "plain-jax".

Einsum attention over all queries, rotation by concatenation, a linear map of [B, T, width], dropout from jax.random, the whole
batch at once, one seed after the other. It shares with this package the parameters, the tasks and the optimiser, nothing else.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rope_jax.study.config import Cell
from rope_jax.tasks.batch import Batch
from rope_jax.training.train import init_state, optimizer


def logits(params: Any, tokens: jax.Array, key: jax.Array, *, num_heads: int, rate: float) -> jax.Array:
    """RoPE in the pre-norm Transformer of `rope_jax.model.transformer`: int [B, T] -> float32 [B, T, vocabulary]."""
    width = params["embedding"].shape[-1]
    length, head_dim = tokens.shape[-1], width // num_heads
    angles = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    cos, sin = (jnp.asarray(f(angles), jnp.float32)[None, :, None, :] for f in (np.cos, np.sin))
    places = iter(jax.random.split(key, 2 * len(params["blocks"]) + 1))

    def drop(x: jax.Array) -> jax.Array:
        key = next(places)
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0) if rate else x

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    def rotate(x: jax.Array) -> jax.Array:
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = drop(params["embedding"][tokens] * math.sqrt(width))
    for _, block in sorted(params["blocks"].items()):
        heads = norm(x, block["attention_norm"]["scale"]) @ block["attention"]["project"]["kernel"]
        q, k, v = jnp.moveaxis(heads.reshape(*tokens.shape, 3, num_heads, head_dim), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", rotate(q), rotate(k)) / math.sqrt(head_dim)
        weights = jax.nn.softmax(jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf))
        attended = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + drop(attended @ block["attention"]["out"]["kernel"])
        hidden = jax.nn.gelu(norm(x, block["mlp_norm"]["scale"]) @ block["mlp"]["up"]["kernel"])
        x = x + drop(hidden @ block["mlp"]["down"]["kernel"])
    return norm(x, params["norm"]["scale"]) @ params["head"]["kernel"]


def stepper(cell: Cell) -> Any:
    """The compiled step: (params, opt_state, batch, step) -> (params, opt_state, loss before it)."""
    make = optimizer(cell.train)

    def loss(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        found = logits(params, batch.tokens, key, num_heads=cell.model.num_heads, rate=cell.train.dropout)
        losses = optax.softmax_cross_entropy_with_integer_labels(found, batch.targets)
        return jnp.sum(losses * batch.loss_mask) / jnp.sum(batch.loss_mask)

    def advance(params: Any, opt_state: Any, batch: Batch, step: int) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, batch, jax.random.fold_in(jax.random.key(0), step))
        updates, opt_state = make.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return jax.jit(advance, donate_argnums=(0, 1))


def trainer(cell: Cell, batches: list[Batch]) -> Callable[[], float]:
    """A call that trains on the next of the batches and returns the loss before the step."""
    state = jax.jit(lambda seed: init_state(seed, cell))(np.uint32(cell.seeds[0]))
    carry, run, step = [state.params, state.opt_state], stepper(cell), 0

    def call() -> float:
        nonlocal step
        carry[0], carry[1], value = run(*carry, batches[step % len(batches)], step)
        step += 1
        return float(value)

    return call
