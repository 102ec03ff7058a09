"""No flag of JAX changes what is drawn at random or what is trained, and the library's code runs with strict dtypes."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.encoders._internal import random
from rope_jax.model.transformer import functional
from rope_jax.policies import Randomized
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy
from rope_jax.training.evaluate import evaluate, fixed_batch
from rope_jax.training.microbatch import microbatch_plan
from rope_jax.training.train import loss_and_gradient

TESTS = Path(__file__).parent
EVERY_FLAG = {
    "JAX_DEBUG_KEY_REUSE": "1",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_ENABLE_X64": "1",
    "JAX_LEGACY_PRNG_KEY": "error",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_RANDOM_SEED_OFFSET": "9",
    "JAX_THREEFRY_PARTITIONABLE": "0",
}


def printed(**flags):
    """What `draws.py` prints under flags, line by line; it imports the package of this checkout."""
    command, environment = [sys.executable, "-m", "draws"], os.environ | {"PYTHONPATH": str(TESTS)} | flags
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def flag_contexts():
    """Contexts that set one flag each, and one without any."""
    return (
        contextlib.nullcontext(),
        jax.default_prng_impl("rbg"),
        jax.default_prng_impl("unsafe_rbg"),
        jax.enable_x64(True),
        jax.threefry_partitionable(False),
        jax.numpy_dtype_promotion("strict"),
    )


def test_strings_and_positions_are_the_same_under_every_flag():
    """Also if a user makes the key under the flag; with any padding, and whatever the other examples are."""
    strings, positions = set(), set()
    for context in flag_contexts():
        with context:
            key, lengths = jax.random.key(0), np.array([3, 3, 2], np.int32)
            for size in (3, 6):
                batch = Copy().sample(key, lengths, max_length=size)
                strings.add(str(np.asarray(batch.tokens)[:, 1:4].tolist()))
                strings.add(str(np.asarray(fixed_batch(Copy(), 3, examples=2, max_length=size).tokens)[:, 1:4].tolist()))
            keys = jnp.stack([jax.random.key(seed) for seed in range(3)])
            alone = jax.tree.map(lambda x: x[1:2], batch)
            for one, its_keys in ((batch, keys), (alone, keys[1:2])):
                drawn = Randomized(max_position=99).positions(its_keys, one).query
                positions.add(str(np.asarray(drawn)[-2 if one is batch else 0, :8].tolist()))
    assert len(strings) == 2
    assert len(positions) == 1


@pytest.mark.slow
def test_all_flags_together_change_no_draw_and_no_training():
    default = printed()
    assert len(default) > 20
    assert printed(**EVERY_FLAG) == default


@pytest.mark.slow
def test_no_flag_alone_changes_a_draw_or_a_training():
    default = printed()
    for flags in (*({name: value} for name, value in EVERY_FLAG.items()), {"JAX_DEFAULT_PRNG_IMPL": "unsafe_rbg"}):
        assert printed(**flags) == default, flags


def test_keys_are_those_of_jax_by_default():
    """Outside values: JAX's functions under its default flags."""
    for seed in (0, 7, 2**31, 2**32 - 1):
        ours, theirs = random.key(seed), jax.random.key(np.uint32(seed))
        assert (jax.random.key_data(ours) == jax.random.key_data(theirs)).all()
        raw = jax.random.key_data(theirs)
        rbg = jax.random.wrap_key_data(jnp.concatenate([raw, raw]), impl="rbg")
        for key in (theirs, raw, rbg, jnp.concatenate([raw, raw])):
            assert (random.bits(key, (3,)) == jax.random.bits(theirs, (3,))).all()
            assert (random.uniform(key, (3,), 1.0, 2.0) == jax.random.uniform(theirs, (3,), minval=1.0, maxval=2.0)).all()
            assert (random.normal(key, (3,)) == jax.random.normal(theirs, (3,))).all()
            assert (random.randint(key, (3,), 2, 9) == jax.random.randint(theirs, (3,), 2, 9)).all()
            assert (random.permutation(key, 5) == jax.random.permutation(theirs, 5)).all()
            assert (random.split(key, 2) == jax.random.split(theirs, 2)).all()
            assert (random.fold_in(key, 3) == jax.random.fold_in(theirs, 3)).all()
            assert (random.keys_of(key, 4)[3] == jax.random.fold_in(theirs, 3)).all()


def test_keys_of_every_generator_are_keys_and_nothing_else_is():
    for generator in ("unsafe_rbg", "philox2x32", "philox4x32", "threefry4x32"):
        drawn = [random.bits(jax.random.key(seed, impl=generator), (2,)).tolist() for seed in range(3)]
        assert len(set(map(tuple, drawn))) == 3
    for value in (3, None, np.array([0, 1]), np.uint32(1), [0, 1], jnp.zeros(3, jnp.uint32)):
        with pytest.raises(ValueError, match=r"key must be a random key, got .*; make one with jax.random.key\(seed\)"):
            random.bits(value, ())


def test_loss_gradient_and_evaluation_run_with_strict_dtypes():
    cell = Cell(
        task=Copy(end_marker=True),
        method=Method(encoder=rj.Compose(rj.RoPE(scaling=rj.DynamicNTK(original_length=12)), rj.T5Bias(), rj.CoPE())),
        model=ModelConfig(width=16, num_heads=2),
        train=TrainConfig(batch_size=4, max_length=5, dropout=0.1),
        evaluate=EvaluateConfig(lengths=(3,), examples=2),
        seeds=(0,),
    )
    init, _ = functional(cell.model, cell.task.vocabulary, cell.method.encoder)
    results = []
    for flag in ("standard", "strict"):
        with jax.numpy_dtype_promotion(flag), jax.numpy_rank_promotion("raise"):
            params = init(random.key(0))
            value, gradient = loss_and_gradient(params, jnp.uint32(0), jnp.int32(0), cell, microbatch_plan(cell))
            stacked = jax.tree.map(lambda x: x[None], params)
            [rows] = evaluate(cell, stacked, np.array([-1]))
        results.append((value, gradient, rows[0]["token_accuracy"]))
    jax.tree.map(np.testing.assert_array_equal, *results)
