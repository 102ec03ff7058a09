"""ALiBi against transformers' slopes, a naive bias, and a naive attention."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each
from rope_jax.model.attention import attend

SLOPES = json.loads((Path(__file__).parents[1] / "fixtures" / "transformers_5_24.json").read_text())["alibi_slopes"]
DIMS = rj.Dims(width=24, num_heads=3, head_dim=8)


@for_each("num_heads", sorted(SLOPES, key=int))
def test_slopes_are_those_of_transformers(num_heads):
    np.testing.assert_allclose(rj.alibi_slopes(int(num_heads)), SLOPES[num_heads], rtol=1e-6)


def test_the_fixture_has_powers_of_two_and_others_and_jit_and_vmap_change_nothing():
    assert {"1", "3", "6", "8", "12", "16"} <= set(SLOPES)

    q, k = jnp.arange(6).reshape(2, 3), jnp.arange(8).reshape(2, 4)
    whole = rj.alibi_bias(q, k, 4)
    np.testing.assert_array_equal(jax.jit(rj.alibi_bias, static_argnums=2)(q, k, 4), whole)
    np.testing.assert_array_equal(jax.vmap(lambda q, k: rj.alibi_bias(q, k, 4))(q, k), whole)


def test_a_bias_is_minus_slope_times_distance():
    q, k = np.array([[3, 7], [0, 2]]), np.array([[0, 1, 5], [4, 4, 9]])
    got = rj.alibi_bias(jnp.asarray(q), jnp.asarray(k), 3)
    expected = [
        [[[-s * abs(a - b) for b in keys] for a in queries] for s in SLOPES["3"]] for queries, keys in zip(q, k, strict=True)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(rj.alibi_bias(jnp.asarray(q / 2), jnp.asarray(k / 2), 3), np.asarray(expected) / 2, rtol=1e-6)


@settings(deadline=None, max_examples=20)
@given(shift=st.integers(-1000, 100_000), scale=st.floats(0, 8, allow_subnormal=False, width=32))
def test_only_distances_count_and_slopes_scale(shift, scale):
    positions = jnp.array([0, 3, 4, 11])
    encoder = rj.ALiBi(slope_scale=scale)
    tables = encoder.prepare({}, None, DIMS)
    here, there = (encoder.bias(tables, None, None, rj.Positions(query=p)) for p in (positions, positions + shift))
    np.testing.assert_array_equal(here, there)
    # below float32's smallest normal number, products are flushed to zero
    np.testing.assert_allclose(here, scale * rj.alibi_bias(positions, positions, 3), rtol=1e-6, atol=1e-36)


def test_the_hook_in_attention_by_blocks_and_with_a_cache():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 9, 3, 8))
    encoder = rj.ALiBi()
    tables = encoder.prepare({}, None, DIMS)

    def hook(q, k, positions):
        return encoder.bias(tables, q, k, positions)

    scores = np.einsum("thd,shd->hts", q, k).astype(np.float64) / np.sqrt(8)
    scores -= np.asarray(SLOPES["3"])[:, None, None] * np.abs(np.arange(9)[:, None] - np.arange(9))
    scores = np.where(np.tri(9, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)
    for block in (2, 4, 9):
        got = attend(q, k, v, rj.Positions(query=jnp.arange(9)), bias=hook, block_size=block)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    one = rj.Positions(query=jnp.array([6]), key=jnp.arange(9))
    got = attend(q[6:7], k, v, one, bias=hook)
    np.testing.assert_allclose(got, expected[6:7], rtol=1e-5, atol=1e-6)


def test_gradients_are_finite_at_distance_zero():
    positions = jnp.array([0.0, 1.0, 1.0])
    gradient = jax.grad(lambda p: jnp.sum(rj.alibi_bias(p, p, 2) ** 2))(positions)
    assert np.isfinite(np.asarray(gradient)).all()


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        rj.alibi_slopes(0)
    with pytest.raises(ValueError, match=re.escape("ALiBi slope_scale must not be negative, got -1.0")):
        rj.ALiBi(slope_scale=-1)
    assert rj.ALiBi().retunable == {"slope_scale"}
