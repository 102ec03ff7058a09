"""The positions of a batch's tokens, with the order of tokens that the task's attention needs."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from rope_jax.encoders.positions import Positions
from rope_jax.policies import Policy
from rope_jax.tasks.base import Task
from rope_jax.tasks.batch import Batch

_UNSEEN_ORDER = 2**31 - 1  # the largest int32: no query sees a key of this order


def token_positions(task: Task, policy: Policy, keys: jax.Array, batch: Batch) -> Positions:
    """The policy's positions; in a task that is not causal, with an order in which every token sees the whole example.

    Args:
      task: says whether attention is causal.
      policy: gives the positions.
      keys: random keys [B], one per example.
      batch: of B examples.

    Returns:
      Positions as the policy gives them. If the task is not causal, the order of all queries and all real keys is 0, and padded
      keys have the largest order, so that no query sees them.
    """
    positions = policy.positions(keys, batch)
    if task.causal:
        return positions
    is_real = jnp.arange(batch.tokens.shape[-1])[None] < batch.lengths[:, None]
    return replace(
        positions,
        query_order=jnp.zeros(batch.tokens.shape, jnp.int32),
        key_order=jnp.where(is_real, 0, _UNSEEN_ORDER).astype(jnp.int32),
    )
