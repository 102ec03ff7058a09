"""The positions of a batch's tokens, for attention as the task defines it: causal or two-sided."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from rope_jax.encoders.positions import Positions
from rope_jax.policies import Policy
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch


def token_positions(task: Task, policy: Policy, keys: jax.Array, batch: Batch) -> Positions:
    """The policy's positions; in a task that is not causal, every token sees the whole example.

    Args:
      task: says whether attention is causal.
      policy: gives the positions.
      keys: random keys [B], one per example.
      batch: of B examples.

    Returns:
      Positions as the policy gives them. If the task is not causal, they say so, and padded keys are a document of their own, so
      that no query sees them.
    """
    positions = policy.positions(keys, batch)
    if task.causal:
        return positions
    one_document = jnp.zeros(batch.tokens.shape, jnp.int32)
    of_queries, of_keys = positions.segments or (one_document, one_document)
    is_real = jnp.arange(batch.tokens.shape[-1], dtype=jnp.int32)[None] < batch.lengths[:, None]
    return replace(
        positions, causal=False, query_segment=of_queries, key_segment=jnp.where(is_real, of_keys, jnp.iinfo(jnp.int32).min)
    )
