"""Micro-batches: how many examples go through the model at once, and to which bucket lengths they are padded.

A batch is sorted by length and split into micro-batches; each is padded to the least bucket length that holds it, and the results
of all are added up. The split changes the order of summation, and nothing else in the results.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.model import block_sizes
from rope_jax.model.implementation import Implementation
from rope_jax.study.config import Cell
from rope_jax.training import devices

MAX_BUCKETS = 4  # the model is compiled once for each
MAX_CANDIDATES = 2048  # of more lengths, evenly spaced ones are tried as buckets
MIN_LENGTHS_PER_TRAINING_BUCKET = 3  # fewer save too little padding to be worth compiling


@dataclass(frozen=True, kw_only=True)
class MicrobatchPlan:
    """How a training step works through its batch.

    Attributes:
      micro_batch_size: examples in a micro-batch; the gradients of all micro-batches are added up.
      bucket_lengths: ascending, in symbols; a micro-batch is padded to the least of them that holds its longest example.
      implementation: how the model is computed.
      devices_per_seed: on how many devices the micro-batches are computed, each of them on one.
    """

    micro_batch_size: int
    bucket_lengths: tuple[int, ...]
    implementation: Implementation = Implementation()
    devices_per_seed: int = 1


def microbatch_plan(cell: Cell, *, devices_per_seed: int = 1) -> MicrobatchPlan:
    """The plan that suits the devices, the shapes of a cell, and how many of its seeds run together on a device."""
    train, model = cell.train, cell.model
    together = devices.together(len(cell.seeds), devices_per_seed)
    budget = block_sizes.activation_bytes(together=together, kept_layers=model.num_layers)
    examples = -(-train.batch_size // devices_per_seed)  # on one device
    count = train.max_length - train.min_length + 1
    lengths = range(train.max_length, train.min_length - 1, -count // MAX_CANDIDATES)
    max_buckets = max(1, min(MAX_BUCKETS, count // MIN_LENGTHS_PER_TRAINING_BUCKET))
    buckets = bucket_lengths(lengths, lambda length: length, max_buckets=max_buckets, compile_cost=0.0)
    longest = cell.task.input_length(train.max_length)
    size = micro_batch_size(longest, hidden=model.hidden, num_heads=model.num_heads, budget=budget)
    if train.length_draw == "example" and block_sizes.on_cpu() and len(buckets) > 1:
        size = min(size, -(-examples // (2 * len(buckets))))  # about two micro-batches in each bucket
    if train.length_draw == "example" and size >= examples:
        buckets = buckets[-1:]  # nearly every whole batch has an example near the longest
    return MicrobatchPlan(
        micro_batch_size=min(size, examples),
        bucket_lengths=buckets,
        implementation=Implementation(activation_bytes=budget),
        devices_per_seed=devices_per_seed,
    )


def micro_batch_size(input_length: int, *, hidden: int, num_heads: int, budget: int) -> int:
    """How many examples go through the model at once: as many as the budget for its widest activation holds, at least 1.

    Args:
      input_length: input positions of an example.
      hidden: features of the widest layer.
      num_heads: attention heads.
      budget: from `block_sizes.activation_bytes`.
    """
    scores = num_heads * min(input_length, block_sizes.MAX_QUERIES_IN_ONE_BLOCK)
    bytes_per_example = 4 * input_length * max(hidden, scores)
    return max(1, budget // bytes_per_example)


def bucket_lengths(
    lengths: Iterable[int], work: Callable[[int], float], *, max_buckets: int = MAX_BUCKETS, compile_cost: float
) -> tuple[int, ...]:
    """Chooses the lengths that all others are padded to, so that the work on padded examples plus compiling takes least.

    A dynamic programme over the sorted lengths: with one bucket more, the least cost of the first `end` lengths is the least
    over `begin` of the cost of the first `begin` lengths, and of one bucket for the rest. Of equal costs, the one with the
    smallest last bucket is chosen.

    Args:
      lengths: distinct; each counts as one example.
      work: cost of one example as a function of its padded length; must not decrease.
      max_buckets: at most so many are chosen.
      compile_cost: cost of one bucket, in the unit of `work`.

    Returns:
      Some of the lengths, ascending; the longest is the last.
    """
    ordered = sorted(lengths)
    work_of = [work(length) for length in ordered]
    least = np.array([0.0, *[np.inf] * len(ordered)])  # cost of the first `end` lengths
    last_bucket_begins = []
    for _ in range(max_buckets):
        cost, begins = least.copy(), np.full(len(least), -1)
        for end in range(1, len(least)):
            sizes = np.arange(1, end + 1)  # of the last bucket
            costs = least[end - sizes] + compile_cost + sizes * work_of[end - 1]
            best = int(np.argmin(costs))
            if costs[best] < least[end]:
                cost[end], begins[end] = costs[best], end - sizes[best]
        least = cost
        last_bucket_begins.append(begins)
    chosen: list[int] = []
    end = len(ordered)
    for begins in reversed(last_bucket_begins):
        if begins[end] >= 0:  # else one bucket fewer costs no more
            chosen = [ordered[end - 1], *chosen]
            end = int(begins[end])
    return tuple(chosen)


def padded_length(length: int, buckets: tuple[int, ...]) -> int:
    """The least bucket length that holds `length` symbols."""
    return min(bucket for bucket in buckets if bucket >= length)


def split_batch(batch: Any, max_size: int, *, devices_per_seed: int = 1) -> tuple[Any, jax.Array]:
    """Splits a batch into equal micro-batches of at most `max_size` examples.

    Args:
      batch: arrays [B, ...].
      max_size: examples.
      devices_per_seed: over how many devices the micro-batches are dealt out in turn; this one gets its own.

    Returns:
      The arrays as [N, M, ...] for N micro-batches of M examples, filled up with copies of the last example; and which examples
      are real, bool [N, M].
    """
    examples = jax.tree.leaves(batch)[0].shape[0]
    count = -(-examples // (max_size * devices_per_seed)) * devices_per_seed
    size = -(-examples // count)
    index = jnp.arange(count * size, dtype=jnp.int32).reshape(count, size)
    index = devices.dealt(index, devices_per_seed)
    return jax.tree.map(lambda x: x[jnp.minimum(index, examples - 1)], batch), index < examples


def split_sorted(batch: Any, lengths: jax.Array, plan: MicrobatchPlan) -> tuple[Any, jax.Array, jax.Array]:
    """Sorts a batch by length, then splits it into micro-batches.

    Args:
      batch: arrays [B, ...].
      lengths: int32 [B], in symbols.
      plan: gives the micro-batch size, and the devices that they are dealt out to.

    Returns:
      As `split_batch`, and besides the longest length of each micro-batch, int32 [N].
    """
    order = jnp.argsort(lengths)
    ordered = jax.tree.map(lambda x: x[order], (batch, lengths))
    (batch, lengths), real = split_batch(ordered, plan.micro_batch_size, devices_per_seed=plan.devices_per_seed)
    return batch, real, lengths[:, -1]


def sum_over_micro_batches(
    function: Callable[..., Any],
    params: Any,
    micro_batches: tuple[Any, ...],
    longest: jax.Array,
    plan: MicrobatchPlan,
    zeros: Any,
) -> Any:
    """Adds up function(bucket length, params, *micro-batch) over all micro-batches, one after the other on each device.

    The bucket is a branch of the program. Lengths follow from the step alone and not from the seed, so that it stays one branch
    where replicas are vmapped.

    Args:
      function: returns a tree like `zeros`.
      params: passed on.
      micro_batches: trees of arrays [N, M, ...].
      longest: int32 [N], the longest length in each.
      plan: gives the bucket lengths.
      zeros: the sum of no micro-batches.
    """
    branches = [partial(function, bucket) for bucket in plan.bucket_lengths]

    def add(total: Any, one: tuple[tuple[Any, ...], jax.Array]) -> tuple[Any, None]:
        micro_batch, longest = one
        bucket = jnp.searchsorted(jnp.array(plan.bucket_lengths, jnp.int32), longest)
        return jax.tree.map(jnp.add, total, jax.lax.switch(bucket, branches, params, *micro_batch)), None

    return devices.added_up(jax.lax.scan(add, zeros, (micro_batches, longest))[0], plan.devices_per_seed)
