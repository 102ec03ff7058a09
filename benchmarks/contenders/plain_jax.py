"""The same training step as one would first write it in JAX: the contender "plain-jax".

Einsum attention over all queries, rotation by concatenation, linear maps of [B, T, width], dropout from jax.random, the whole
batch at once, one seed. It gets parameters, examples and the optimiser from this package, and shares nothing else with it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rope_jax.study.config import Cell
from rope_jax.tasks.base import Batch


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


def stepper(cell: Cell, optimizer: optax.GradientTransformation) -> Any:
    """The jitted step: (params, opt_state, batch, step) -> (params, opt_state, loss before the step)."""

    def loss(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        predicted = logits(params, batch.tokens, key, num_heads=cell.model.num_heads, rate=cell.train.dropout)
        losses = optax.softmax_cross_entropy_with_integer_labels(predicted, batch.targets)
        return jnp.sum(losses * batch.loss_mask) / jnp.sum(batch.loss_mask)

    def advance(params: Any, opt_state: Any, batch: Batch, step: int) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, batch, jax.random.fold_in(jax.random.key(0), step))
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return jax.jit(advance, donate_argnums=(0, 1))


def trainer(cell: Cell, params: Any, batches: list[Batch], optimizer: optax.GradientTransformation) -> Callable[[], float]:
    """A call that trains on the next of the batches, in turns, and returns the loss before the step.

    Args:
      cell: the model's sizes and the dropout rate.
      params: of one seed; the first call consumes them.
      batches: taken in turns.
      optimizer: optax's.
    """
    opt_state, run, step = jax.jit(optimizer.init)(params), stepper(cell, optimizer), 0

    def call() -> float:
        nonlocal params, opt_state, step
        params, opt_state, value = run(params, opt_state, batches[step % len(batches)], step)
        step += 1
        return float(value)

    return call
