"""Training: replicas equal single seeds, a resumed run equals an uninterrupted one, a seed that diverges disturbs no other."""

import functools
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rope_jax as rj
from rope_jax.model.transformer import functional
from rope_jax.optimizers import AdamW, WarmupCosine
from rope_jax.policies import Randomized
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy
from rope_jax.training import checkpoint, train
from rope_jax.training.devices import over_replicas, replica_mesh, whole_sharding
from rope_jax.training.evaluate import evaluate
from rope_jax.training.microbatch import MicrobatchPlan, microbatch_plan
from rope_jax.training.numbers import split_numbers
from rope_jax.training.train import (
    chunk_size,
    draw_lengths,
    fit,
    init_replicas,
    init_state,
    loss_and_gradient,
    optimizer,
    train_chunk,
    train_step,
)


def last(iterator):
    *_, end = iterator
    return end


def with_train(cell, **options):
    return replace(cell, train=replace(cell.train, **options))


@pytest.mark.slow
def test_all_seeds_in_one_program_equal_each_seed_alone(toy_cell):
    cell = replace(toy_cell, seeds=(5, 2, 9))
    together = last(fit(cell)).state
    for i, seed in enumerate(cell.seeds):
        alone = last(fit(replace(cell, seeds=(seed,)))).state
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, i=i: x[i], together.params), jax.tree.map(lambda x: x[0], alone.params), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_an_accelerators_way_trains_the_same_model(toy_cell, monkeypatch):
    """All replicas in one batch and the whole batch at once, in their own buckets; here on a CPU."""
    cell = with_train(toy_cell, max_length=6, length_draw="batch", dropout=0.2)
    one_by_one = last(fit(cell)).state.params
    jax.clear_caches()
    monkeypatch.setattr("rope_jax.model.block_sizes.on_cpu", lambda: False)
    assert microbatch_plan(cell) == MicrobatchPlan(micro_batch_size=4, bucket_lengths=(3, 6))
    chex.assert_trees_all_close(last(fit(cell)).state.params, one_by_one, rtol=1e-4, atol=1e-5)
    jax.clear_caches()


@pytest.mark.slow
def test_a_chunk_equals_a_loop_of_steps(toy_cell):
    state, plan = init_state(jnp.uint32(1), toy_cell), microbatch_plan(toy_cell)
    for _ in range(toy_cell.train.steps):
        state, _ = train_step(state, jnp.uint32(1), state.step, toy_cell, plan)
    chunked = last(fit(toy_cell)).state
    chex.assert_trees_all_close(state.params, jax.tree.map(lambda x: x[1], chunked.params), rtol=1e-4, atol=1e-5)


def test_resumed_equals_uninterrupted_bit_for_bit(toy_cell, tmp_path, monkeypatch):
    """At any step, whatever the chunks."""
    folders = [tmp_path / "0", tmp_path / "1"]
    whole = last(fit(toy_cell)).state
    for sizes in ((8,), (3, 5), (1, 1, 5, 1), (7, 1)):
        chunks = iter(sizes)
        monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left, chunks=chunks: next(chunks))
        for now in fit(toy_cell, wanted=lambda step: True):
            checkpoint.save(folders, now.state)
            assert [checkpoint.latest_step(folder) for folder in folders] == [now.step] * 2
        chex.assert_trees_all_equal(now.state, whole)
        monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left, first=sizes[0]: min(first, left))
        interrupted = next(iter(fit(toy_cell, wanted=lambda step: True)))
        assert interrupted.step == sizes[0]
        checkpoint.save(folders, interrupted.state)
        restored = checkpoint.load(folders, toy_cell)
        chex.assert_trees_all_equal(restored if sizes[0] == 8 else last(fit(toy_cell, restored)).state, whole)


def test_the_next_chunk_starts_before_the_last_is_read_unless_its_state_is_wanted(toy_cell, monkeypatch):
    """A state that is not wanted is consumed; one that is wanted is whole until the caller goes on."""
    events, chunk = [], train.train_chunk

    def launched(state, seeds, numbers, start, steps, **options):
        events.append(int(start))
        return chunk(state, seeds, numbers, start, steps, **options)

    monkeypatch.setattr(train, "train_chunk", launched)
    monkeypatch.setattr(train, "chunk_size", lambda speed, left: 2)
    for now in fit(toy_cell, wanted=lambda step: step == 4):
        events.append(f"yield {now.step}")
        assert (now.state is not None) == (now.step in (4, 8))
        if now.state is not None:
            assert np.asarray(now.state.step).tolist() == [now.step] * 2
        assert now.losses.shape == (2,)
        assert now.seconds > 0
    assert events == [0, 0, 2, "yield 2", "yield 4", 4, 6, "yield 6", "yield 8"]  # the first call compiles


def test_a_trained_state_is_not_trained_further(toy_cell, compiled):
    state = last(fit(toy_cell)).state
    assert list(fit(toy_cell, state)) == []


def test_lengths_are_uniform_and_the_same_for_all_seeds():
    config = TrainConfig(batch_size=16, min_length=3, max_length=6)
    drawn = np.stack([draw_lengths(step, config) for step in range(200)])
    share = np.bincount(drawn.ravel(), minlength=7)[3:] / drawn.size
    assert drawn.min() == 3
    assert drawn.max() == 6
    assert np.abs(share - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / drawn.size)
    assert (drawn != drawn[:, :1]).any(axis=1).all()  # an example's length is its own
    batch = np.stack([draw_lengths(step, replace(config, length_draw="batch")) for step in range(200)])
    assert (batch == batch[:, :1]).all()
    assert set(batch[:, 0].tolist()) == {3, 4, 5, 6}


PLANS = [
    MicrobatchPlan(micro_batch_size=size, bucket_lengths=lengths) for size, lengths in ((11, (6,)), (4, (2, 4, 6)), (1, (1, 6)))
]


@pytest.mark.parametrize(
    ("method", "draw"),
    [
        (Method(encoder=rj.RoPE(), policy=Randomized(max_position=50)), "example"),
        (Method(encoder=rj.Compose(rj.Sinusoidal(), rj.Fire())), "batch"),
        pytest.param(Method(encoder=rj.RoPE(scaling=rj.DynamicNTK(original_length=6))), "example", marks=pytest.mark.slow),
        pytest.param(Method(encoder=rj.RoPE(scaling=rj.DynamicNTK(original_length=6))), "batch", marks=pytest.mark.slow),
        pytest.param(Method(encoder=rj.Compose(rj.Sinusoidal(), rj.Fire())), "example", marks=pytest.mark.slow),
        pytest.param(Method(encoder=rj.RoPE(), policy=Randomized(max_position=50)), "batch", marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.slow
def test_micro_batches_and_buckets_do_not_change_the_loss_and_its_gradient(method, draw):
    """Against one example at a time, unpadded."""
    train = TrainConfig(batch_size=11, max_length=6, length_draw=draw, steps=9)
    cell = Cell(
        task=Copy(alphabet=5),
        method=method,
        model=ModelConfig(num_layers=1, width=16, num_heads=2),
        train=train,
        evaluate=EvaluateConfig(lengths=(2,)),
        seeds=(3,),
    )
    seed, step = jnp.uint32(3), jnp.int32(7)
    params = init_state(seed, cell).params
    _, apply = functional(cell.model, cell.task.vocabulary, method.encoder)
    lengths = draw_lengths(step, train)
    data, place = (jax.random.fold_in(jax.random.fold_in(jax.random.key(3), purpose), step) for purpose in (1, 2))
    batch = cell.task.sample(data, lengths, max_length=6)
    keys = jax.random.split(place, 11)

    @jax.jit
    @jax.value_and_grad
    def of_one(params, one, key):
        logits = apply(params, one.tokens, method.policy.positions(key, one))
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), one.targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(picked * one.loss_mask) / jnp.sum(lengths + 1)

    each = []
    for i, n in enumerate(lengths.tolist()):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)
        each.append(of_one(params, one.cut_to(2 * n + 2), keys[i : i + 1]))
    value, gradient = jax.tree.map(lambda *x: sum(x), *each)
    for plan in (microbatch_plan(cell), *PLANS):
        got = jax.jit(functools.partial(loss_and_gradient, cell=cell, plan=plan))(params, seed, step)
        assert float(got[0]) == pytest.approx(float(value), rel=1e-5)
        chex.assert_trees_all_close(got[1], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_dropout_depends_on_seed_and_step_and_not_on_micro_batches(toy_cell, monkeypatch):
    cell = with_train(toy_cell, dropout=0.3, batch_size=11, max_length=6)
    lengths = draw_lengths(jnp.int32(2), cell.train)
    batch = cell.task.sample(jax.random.key(0), lengths, max_length=6)  # so that the examples are always the same
    monkeypatch.setattr("rope_jax.training.train.draw_lengths", lambda step, config: lengths)
    monkeypatch.setattr("rope_jax.training.train.draw_batch", lambda seed, step, cell: batch)
    params = init_state(jnp.uint32(1), cell).params
    first, *others = (
        jax.jit(functools.partial(loss_and_gradient, cell=cell, plan=plan))(params, jnp.uint32(1), jnp.int32(2)) for plan in PLANS
    )
    for other in others:
        chex.assert_trees_all_close(other, first, rtol=1e-4, atol=1e-6)
    whole = with_train(cell, dropout=0.0)
    without = jax.jit(functools.partial(loss_and_gradient, cell=whole, plan=PLANS[0]))(params, jnp.uint32(1), jnp.int32(2))
    assert abs(float(without[0] - first[0])) > 1e-3
    for seed, step in ((2, 2), (1, 3)):
        other = jax.jit(functools.partial(loss_and_gradient, cell=cell, plan=PLANS[0]))(params, jnp.uint32(seed), jnp.int32(step))
        assert abs(float(other[0] - first[0])) > 1e-4


def test_one_bucket_alone_is_computed_for_vmapped_replicas_too(toy_cell):
    """It stays a branch of the program, because the lengths depend on the step alone; all branches are not computed."""
    cell = with_train(toy_cell, batch_size=4, max_length=6)
    states = jax.vmap(lambda seed: init_state(seed, cell))(jnp.arange(2, dtype=jnp.uint32))
    plan = MicrobatchPlan(micro_batch_size=2, bucket_lengths=(2, 4, 6))
    step = jax.vmap(functools.partial(loss_and_gradient, cell=cell, plan=plan), in_axes=(0, 0, None))
    jaxpr = jax.make_jaxpr(step)(states.params, jnp.arange(2, dtype=jnp.uint32), jnp.int32(0))
    assert [len(eqn.params["branches"]) for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "cond"] == [3]


def equations(jaxpr):
    """All equations of a program, with those of its loops and branches."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_a_cell_is_trained_by_one_program(toy_cell, compiled):
    jax.clear_caches()
    compiled.clear()
    list(fit(with_train(toy_cell, steps=200, max_length=9)))
    assert compiled == ["jit(init_replicas)", "jit(train_chunk)"]


def test_cells_that_differ_in_numbers_alone_share_one_program(toy_cell, compiled, monkeypatch):
    """With the results that programs with these numbers compiled in give."""
    monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left: 1)
    cells = [
        with_train(toy_cell, learning_rate=rate, clip_norm=clip, optimizer=AdamW(weight_decay=decay, eps=eps))
        for rate, clip, decay, eps in ((2e-3, 1.0, 0.01, 1e-8), (3e-2, 0.2, 0.3, 1e-6))
    ]
    jax.clear_caches()
    compiled.clear()
    shared = [last(fit(cell)) for cell in cells]
    assert compiled == ["jit(init_replicas)", "jit(train_chunk)"]
    seeds = jnp.array(toy_cell.seeds, jnp.uint32)
    for cell, one in zip(cells, shared, strict=True):
        state = init_replicas(seeds, {}, cell=cell)
        state, losses = train_chunk(state, seeds, {}, np.int32(0), np.int32(8), cell=cell, plan=microbatch_plan(cell))
        np.testing.assert_array_equal(np.asarray(losses)[:, 7], one.losses)
        chex.assert_trees_all_equal(state, one.state)
    differences = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), *(one.state.params for one in shared))
    assert max(jax.tree.leaves(differences)) > 1e-3  # the numbers are used


def test_seeds_have_different_weights(toy_cell):
    one, other = (init_state(jnp.uint32(seed), toy_cell).params for seed in (0, 1))
    # draws of a normal distribution: independent ones have no correlation
    pairs = [(np.ravel(a), np.ravel(b)) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True) if a.ndim > 1]
    a, b = (np.concatenate(x) for x in zip(*pairs, strict=True))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1


def test_seeds_and_steps_have_different_examples(toy_cell):
    """From equal weights, a loss is a function of the examples alone."""
    state, plan = init_state(jnp.uint32(0), toy_cell), microbatch_plan(toy_cell)
    step = jax.jit(lambda state, seed: train_step(state, seed, state.step, toy_cell, plan)[1])
    losses = {float(step(replace(state, step=jnp.int32(done)), jnp.uint32(seed))) for seed in (0, 1) for done in (0, 5)}
    assert len(losses) == 4
    assert float(step(state, jnp.uint32(0))) in losses


def test_a_divergence_in_the_very_last_step_is_seen(toy_cell):
    """Its loss is that of the parameters before; what it leaves is not finite."""
    choices = {"optimizer": AdamW(weight_decay=1e3), "schedule": WarmupCosine(warmup_steps=0)}
    state = last(fit(with_train(toy_cell, steps=1, learning_rate=3e38, **choices))).state
    assert not all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert state.diverged_at.tolist() == [0, 0]


def test_a_seed_that_diverges_is_marked_and_leaves_the_others_alone(toy_cell):
    clean = last(fit(toy_cell)).state
    state = jax.jit(jax.vmap(lambda seed: init_state(seed, toy_cell)))(jnp.arange(2, dtype=jnp.uint32))
    broken = replace(state, params=jax.tree.map(lambda x: x.at[0].set(jnp.nan), state.params))
    end = last(fit(toy_cell, jax.device_put(broken, jax.tree.leaves(clean)[0].sharding)))
    assert end.state.diverged_at.tolist() == [0, -1]
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x: x[1], state.params) for state in (end.state, clean)))
    rows = [row for rows in evaluate(toy_cell, end.state.params, np.asarray(end.state.diverged_at)) for row in rows]
    bad = [row for row in rows if row["seed"] == 0]
    assert {(row["status"], row["diverged_at"], row["exact_match"], row["token_accuracy"]) for row in bad} == {
        ("diverged", 0, None, None)
    }
    assert {row["status"] for row in rows if row["seed"] == 1} == {"ok"}


def test_the_gradient_is_clipped_by_its_global_norm():
    config = TrainConfig(clip_norm=0.5)
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    chained = optimizer(config)
    _, state = chained.update(gradient, chained.init(gradient), gradient)
    first_moment = optax.tree_utils.tree_get(state, "mu")
    chex.assert_trees_all_close(first_moment, {"a": jnp.array([0.03]), "b": jnp.array([0.04])}, rtol=1e-5)


def test_a_chunk_takes_about_a_second():
    for seconds, left, size in (
        (None, 900, 1),
        (0.0, 900, 100),
        (1e-4, 900, 100),
        (0.01, 900, 100),
        (0.1, 900, 10),
        (0.1, 3, 3),
        (7.0, 900, 1),
    ):
        assert chunk_size(seconds, left) == size


def test_any_number_of_steps_is_done_exactly(toy_cell, monkeypatch):
    monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left: min(100, left))
    ends = [now.step for now in fit(with_train(toy_cell, steps=103))]
    assert ends == [100, 103]


def test_replicas_spread_over_the_devices():
    assert len(jax.devices()) == 2
    assert [replica_mesh(n).size for n in (1, 2, 3, 4)] == [2, 2, 2, 2]
    add = over_replicas(lambda replica, shared: {"sum": replica["x"] + shared}, 5)
    out = jax.jit(add)({"x": jnp.arange(10.0).reshape(5, 2)}, jnp.array([1.0, 2.0]))["sum"]
    np.testing.assert_array_equal(out, np.arange(10.0).reshape(5, 2) + np.array([1.0, 2.0]))
    assert len(out.sharding.device_set) == 2


def test_a_chunk_never_calls_back_to_the_host(toy_cell):
    state = last(fit(toy_cell)).state
    seeds = jax.device_put(np.array([0, 1], np.uint32), state.step.sharding)
    cell, numbers = split_numbers(toy_cell)
    shared = jax.device_put((numbers, np.int32(8), np.int32(2)), whole_sharding(2))
    plan = microbatch_plan(toy_cell)
    assert "callback" not in train_chunk.lower(state, seeds, *shared, cell=cell, plan=plan).as_text()
    with jax.transfer_guard("disallow"):  # nor does it get arrays from there
        train_chunk(state, seeds, *shared, cell=cell, plan=plan)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copy_is_learned(dtype):
    """At toy size, in both compute dtypes: nearly every string of the longest training length is copied."""
    cell = Cell(
        task=Copy(alphabet=8),
        method=Method(encoder=rj.RoPE()),
        model=ModelConfig(num_layers=2, width=64, num_heads=4, compute_dtype=dtype),
        train=TrainConfig(steps=1200, max_length=8),
        evaluate=EvaluateConfig(lengths=(8,), examples=256),
        seeds=(0, 1),
    )
    state = last(fit(cell)).state
    rows = [row for rows in evaluate(cell, state.params, np.asarray(state.diverged_at)) for row in rows]
    assert min(row["exact_match"] for row in rows) > 0.95
