"""Micro-batches: buckets cost least, a split keeps every example once, sizes keep the memory budgets."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from rope_jax import RoPE
from rope_jax.model import block_sizes
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy
from rope_jax.training.devices import added_up, over_replicas, replica_mesh
from rope_jax.training.microbatch import bucket_lengths, micro_batch_size, microbatch_plan, padded_length, split_batch

MODEL = {"hidden": 256, "num_heads": 8}


def test_bucket_lengths_by_hand():
    lengths = (6, 12, 13, 14, 15, 18, 24, 48)
    for compile_cost, work, expected in (
        (1.0, lambda n: 0, (48,)),  # compiling is all the cost
        (1.0, lambda n: n**2, (14, 18, 24, 48)),  # padding is nearly all of it
        (0.0, lambda n: n, (6, 15, 24, 48)),  # 6 + 4 * 15 + 2 * 24 + 48 = 162
    ):
        assert bucket_lengths(lengths, work, compile_cost=compile_cost) == expected
    assert bucket_lengths(range(100, 0, -1), lambda n: 1 + n**2, compile_cost=1.0) == (35, 60, 81, 100)
    assert bucket_lengths((40,), lambda n: n, compile_cost=1.0) == (40,)


def test_lengths_in_a_range_have_even_buckets():
    """Uniform lengths and linear work: steps of equal size cost least."""
    for shortest, longest, max_buckets, expected in (
        (1, 12, 4, (3, 6, 9, 12)),
        (1, 6, 2, (3, 6)),
        (1, 4, 1, (4,)),
        (1, 40, 4, (10, 20, 30, 40)),
        (11, 50, 4, (20, 30, 40, 50)),
        (1, 14, 4, (4, 8, 11, 14)),
    ):
        lengths = range(shortest, longest + 1)
        assert bucket_lengths(lengths, lambda n: n, max_buckets=max_buckets, compile_cost=0.0) == expected


@given(
    lengths=st.sets(st.integers(1, 300), min_size=1, max_size=9),
    scale=st.sampled_from([1e-6, 1e-4, 1e-2, 1.0]),
    max_buckets=st.integers(1, 4),
)
def test_no_other_choice_of_buckets_costs_less(lengths, scale, max_buckets):
    def work(n):
        return scale * n * (n + 64)

    def cost(buckets):
        return len(buckets) + sum(work(padded_length(n, buckets)) for n in lengths)

    chosen = bucket_lengths(lengths, work, max_buckets=max_buckets, compile_cost=1.0)
    assert len(chosen) <= max_buckets
    assert list(chosen) == sorted(chosen)
    others = [(*some, max(lengths)) for count in range(max_buckets) for some in itertools.combinations(lengths, count)]
    assert cost(chosen) == pytest.approx(min(cost(tuple(set(other))) for other in others))


@settings(deadline=None)  # every shape compiles
@given(examples=st.integers(1, 40), max_size=st.integers(1, 45))
def test_a_split_keeps_every_example_once(examples, max_size):
    batch = {"a": np.arange(examples), "b": np.arange(2 * examples).reshape(examples, 2)}
    micro_batches, real = jax.tree.map(np.asarray, split_batch(jax.tree.map(jnp.asarray, batch), max_size))
    assert real.shape == micro_batches["a"].shape
    assert real.shape[1] <= max_size
    for name in batch:
        np.testing.assert_array_equal(micro_batches[name][real], batch[name])
    assert (micro_batches["a"][~real] == examples - 1).all()


def test_replicas_share_the_budget_of_their_device_and_layers_its_memory(monkeypatch):
    """One replica of a model of 153M parameters gets its whole batch at once, and does not run out of memory."""
    monkeypatch.setattr(block_sizes, "device_memory", lambda: 100 * 2**30)
    assert block_sizes.activation_bytes() == block_sizes.activation_bytes(together=9, kept_layers=99) == 2**20
    monkeypatch.setattr(block_sizes, "on_cpu", lambda: False)
    assert block_sizes.activation_bytes(together=32, kept_layers=4) == 2**26
    assert block_sizes.activation_bytes(kept_layers=12) == 100 * 2**30 // 96
    cell = Cell(
        task=Copy(),
        method=Method(encoder=RoPE()),
        model=ModelConfig(num_layers=12, width=1024, num_heads=16),
        train=TrainConfig(batch_size=256, max_length=40),
        evaluate=EvaluateConfig(lengths=(40,)),
        seeds=(0,),
    )
    plans = [microbatch_plan(replace(cell, seeds=tuple(range(count)))) for count in (2, 8, 64)]  # on two devices
    assert plans[0].micro_batch_size == 256
    budgets = [plan.implementation.activation_bytes for plan in plans]
    assert budgets == [budgets[0] // together for together in (1, 4, 32)]


def test_devices_of_a_seed_get_micro_batches_in_turn():
    """Nothing is left out and nothing is there twice, also where there are fewer examples than devices."""
    mesh = replica_mesh(1, 2)
    for examples, max_size in ((12, 3), (7, 2), (1, 4), (9, 100)):

        def of_device(batch, _, max_size=max_size):
            parts, real = split_batch(batch, max_size, devices_per_seed=2)
            return added_up(jnp.zeros(batch.shape, jnp.int32).at[parts].add(real), 2), jnp.zeros(parts.shape[1])

        batch = jax.device_put(np.arange(examples, dtype=np.int32)[None], NamedSharding(mesh, PartitionSpec()))
        counts, size = jax.jit(over_replicas(of_device, 1, 2))(batch, ())
        np.testing.assert_array_equal(counts[0], np.ones(examples))
        assert size.shape[1] <= min(max_size, -(-examples // 2))


def test_a_micro_batch_fits_in_the_cache_of_a_core_and_an_accelerator_takes_more(monkeypatch):
    for length in (10, 82, 1000, 100_000):
        size = micro_batch_size(length, **MODEL, budget=block_sizes.activation_bytes(together=32, kept_layers=12))
        bytes_per_example = 4 * length * max(256, 8 * min(length, 128))
        assert size == 1 or size * bytes_per_example <= 2**20 < (size + 1) * bytes_per_example
        with monkeypatch.context() as patch:
            patch.setattr(block_sizes, "on_cpu", lambda: False)
            for together, of_one in ((32, 2**26), (1, 2**31)):
                budget = block_sizes.activation_bytes(together=together)
                assert budget == of_one
                assert micro_batch_size(length, **MODEL, budget=budget) == max(1, of_one // bytes_per_example) >= size
