"""KERPLE against its two kernels in float64 loops; its learned numbers' ranges and gradients."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each
from rope_jax.model.attention import attend

DIMS = rj.Dims(width=6, num_heads=3, head_dim=2)
QUERY = np.array([[0, 3, 7, 40], [2, 2, 90_000, 130]])  # neither contiguous nor sorted
KEY = np.array([[0, 1, 5, 40, 41], [4, 2, 9, 100_000, 3]])
STORED = {
    "log": {"log_r1": [-1.0, 0.3, 1.5], "log_r2": [0.5, -2.0, -0.1]},
    "power": {"log_r1": [-1.0, 0.3, 1.5], "logit_r2": [0.0, -1.5, -0.4]},
}
KERNELS = for_each("kernel", ["log", "power"])


def drawn(kernel):
    return {name: jnp.asarray(numbers, jnp.float32) for name, numbers in STORED[kernel].items()}


def ranges(kernel, params):
    """(r1, r2) of every head, as the docstring says they are stored."""
    r1 = [math.exp(x) for x in np.asarray(params["log_r1"], np.float64)]
    if kernel == "log":
        return list(zip(r1, [math.exp(x) for x in np.asarray(params["log_r2"], np.float64)], strict=True))
    return list(zip(r1, [2 / (1 + math.exp(-x)) for x in np.asarray(params["logit_r2"], np.float64)], strict=True))


def naive(kernel, params, query, key):
    """arXiv:2205.09921, section 4.2: [H, Tq, Tk], a pair at a time."""

    def one(r1, r2, distance):
        return -r1 * math.log(1 + r2 * distance) if kernel == "log" else -r1 * distance**r2

    return np.array([[[one(r1, r2, abs(float(m - n))) for n in key] for m in query] for r1, r2 in ranges(kernel, params)])


@partial(jax.jit, static_argnums=0)
def biased(encoder, params, positions):
    tables = encoder.tables(encoder.prepare(params, positions.length, DIMS), positions)
    return encoder.bias(tables, None, None, positions)


@KERNELS
def test_a_bias_is_its_kernel(kernel):
    encoder, params = rj.Kerple(kernel=kernel), drawn(kernel)
    got = biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    expected = np.stack([naive(kernel, params, q, k) for q, k in zip(QUERY, KEY, strict=True)])
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert got.dtype == jnp.float32
    mapped = jax.vmap(lambda q, k: biased(encoder, params, rj.Positions(query=q, key=k)))(jnp.asarray(QUERY), jnp.asarray(KEY))
    np.testing.assert_allclose(mapped, got, rtol=1e-6)
    halves = rj.Positions(query=jnp.asarray(QUERY[0] / 2), key=jnp.asarray(KEY[0] / 2))
    np.testing.assert_allclose(biased(encoder, params, halves), naive(kernel, params, QUERY[0] / 2, KEY[0] / 2), rtol=1e-5)


@KERNELS
@settings(deadline=None, max_examples=15)
@given(shift=st.integers(-100_000, 2**30))
def test_only_distances_count(kernel, shift):
    encoder, params = rj.Kerple(kernel=kernel), drawn(kernel)
    here, there = (
        biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY + s), key=jnp.asarray(KEY + s))) for s in (0, shift)
    )
    np.testing.assert_array_equal(here, there)


@for_each("dtype", [jnp.uint8, jnp.uint32, jnp.int8])
def test_narrow_and_unsigned_positions_have_the_same_distances(dtype):
    """A key before its query has a negative offset, which an unsigned dtype does not know."""
    encoder, params = rj.Kerple(), drawn("log")
    positions = np.array([0, 5, 120])
    wide, narrow = (biased(encoder, params, rj.Positions(query=jnp.asarray(positions, d))) for d in (jnp.int32, dtype))
    np.testing.assert_array_equal(narrow, wide)


STORABLE = st.floats(-40, 40, width=32)


@KERNELS
@settings(deadline=None, max_examples=40)
@given(first=STORABLE, second=STORABLE)
def test_no_stored_number_leaves_the_range(kernel, first, second):
    """r1 > 0, r2 > 0, and r2 <= 2 for "power": read off the bias at distances 0, 1 and 2."""
    encoder = rj.Kerple(kernel=kernel)
    params = dict(zip(STORED[kernel], (jnp.full(3, x, jnp.float32) for x in (first, second)), strict=True))
    positions = rj.Positions(query=jnp.array([0]), key=jnp.array([0, 1, 2, 100, 10_000]))
    bias = np.asarray(biased(encoder, params, positions), np.float64)[0, 0]
    assert bias[0] == 0
    assert np.isfinite(bias).all()
    if kernel == "power":
        assert bias[1] == pytest.approx(-math.exp(first), rel=1e-4)  # -r1, whatever r2
        r2 = math.log2(bias[2] / bias[1])
        assert -1e-6 <= r2 <= 2 + 1e-5
        assert r2 == pytest.approx(2 / (1 + math.exp(-second)), rel=1e-4, abs=1e-6)
    else:
        assert (bias[1:] < 0).all()
        assert bias[1] == pytest.approx(-math.exp(first) * math.log1p(math.exp(second)), rel=1e-4)
    assert (np.diff(bias) <= 0).all()  # further is never more


@KERNELS
def test_initial_numbers_are_uniform_in_the_released_ranges(kernel):
    dims = rj.Dims(width=4, num_heads=2000, head_dim=2)
    initial = np.array(ranges(kernel, rj.Kerple(kernel=kernel).init(jax.random.key(0), dims)))
    highest = (2.0, 1.0) if kernel == "log" else (1.0, 2.0)
    for numbers, high in zip(initial.T, highest, strict=True):
        assert 0 < numbers.min() < 0.02 * high
        assert 0.98 * high < numbers.max() <= high
        np.testing.assert_allclose(np.quantile(numbers, [0.25, 0.5, 0.75]), np.array([0.25, 0.5, 0.75]) * high, atol=0.05 * high)
    assert abs(np.corrcoef(initial.T)[0, 1]) < 0.1  # the two are drawn apart


@KERNELS
def test_gradients_are_those_of_the_formula_and_finite_at_distance_0(kernel):
    encoder, params = rj.Kerple(kernel=kernel), drawn(kernel)
    q, k = np.array([0, 5, 5, 10**7]), np.array([0, 0, 5, 6])
    where = rj.Positions(query=jnp.asarray(q), key=jnp.asarray(k))
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)), jnp.float32)
    derivatives = jax.grad(lambda params: jnp.sum(weight * biased(encoder, params, where)))(params)
    for name in params:
        for h in range(3):
            difference = 0.0
            for sign in (1, -1):
                moved = {n: np.array(x, np.float64) for n, x in params.items()}
                moved[name][h] += sign * 1e-5
                difference += sign * float(np.sum(np.asarray(weight, np.float64) * naive(kernel, moved, q, k))) / 2e-5
            assert float(derivatives[name][h]) == pytest.approx(difference, rel=1e-3)
    alone = rj.Positions(query=jnp.zeros(3, jnp.int32))  # every pair at distance 0
    here = jax.grad(lambda params: jnp.sum(biased(encoder, params, alone)))(params)
    for leaf in jax.tree.leaves(here):
        np.testing.assert_array_equal(leaf, 0)


@KERNELS
def test_gradients_to_real_positions_are_finite_at_distance_0(kernel):
    """The slope of the power itself is infinite there, for r2 < 1."""
    encoder, params = rj.Kerple(kernel=kernel), drawn(kernel)
    derivatives = jax.grad(lambda positions: jnp.sum(biased(encoder, params, rj.Positions(query=positions))[:, 0]))(
        jnp.array([1.0, 1.0, 3.0])
    )
    assert np.isfinite(np.asarray(derivatives)).all()
    slopes = 0.0
    for r1, r2 in ranges(kernel, params):
        slopes -= r1 * r2 / (1 + 2 * r2) if kernel == "log" else r1 * r2 * 2 ** (r2 - 1)
    assert float(derivatives[2]) == pytest.approx(slopes, rel=1e-5)


@KERNELS
def test_attention_adds_it_in_float32_under_bfloat16(kernel):
    q, k, v = (x.astype(jnp.bfloat16) for x in jax.random.normal(jax.random.key(0), (3, 5, 3, 2)))
    encoder, params = rj.Kerple(kernel=kernel), drawn(kernel)
    positions = np.array([0, 2, 3, 9, 11])

    @jax.jit
    def gradients(params, q, k, v):
        def total(params, q, k, v):
            def hook(q, k, here):
                added = encoder.bias(params, q, k, here)
                assert added.dtype == jnp.float32
                return added

            out = attend(q, k, v, rj.Positions(query=jnp.asarray(positions)), bias=hook, block_size=2)
            return jnp.sum(out.astype(jnp.float32) ** 2), out

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(params, q, k, v)

    derivatives, got = gradients(params, q, k, v)
    scores = np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in (q, k))) / math.sqrt(2)
    weights = np.where(np.tri(5, dtype=bool), np.exp(scores + naive(kernel, params, positions, positions)), 0)
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), np.asarray(v, np.float64))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=0.02)
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(derivatives))
    assert all(np.asarray(leaf, np.float32).any() for leaf in jax.tree.leaves(derivatives))


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match=re.escape("Kerple kernel must be 'log' or 'power', got 'linear'")):
        rj.Kerple(kernel="linear")
    assert rj.Kerple().retunable == frozenset()
    assert rj.Kerple().kernel == "log"
