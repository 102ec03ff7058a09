"""FIRE against its network in float64 loops; below its threshold a function of the distance, above it not."""

import math
import re

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
ENCODER = rj.Fire(hidden=5, init_c=0.3, init_threshold=50.0)
QUERY = np.array([[0, 3, 7, 40], [2, 51, 90_000, 130]])  # neither contiguous nor sorted, on both sides of the threshold
KEY = np.array([[0, 1, 5, 40, 41], [4, 2, 9, 100_000, 3]])


def drawn():
    """Units with a kink between 0 and 1, so that every input of the network matters."""
    numbers = {
        "log_c": -1.2,
        "log_threshold": 3.8,
        "w1": [1.0, -0.8, 1.5, 0.7, -1.2],
        "b1": [0.1, 0.5, -0.4, -0.2, 0.8],
        "w2": np.random.default_rng(0).normal(size=(5, 3)),
        "b2": [0.3, -0.5, 0.1],
    }
    assert numbers.keys() == ENCODER.init(jax.random.key(0), DIMS).keys()
    return {name: jnp.asarray(x, jnp.float32) for name, x in numbers.items()}


def naive(params, query, key):
    """arXiv:2310.04418, eq. 18, a pair and a unit at a time; float64 [H, Tq, Tk]."""
    p = {name: np.asarray(x, np.float64) for name, x in params.items()}
    c, threshold = math.exp(p["log_c"]), math.exp(p["log_threshold"])
    out = np.zeros((p["b2"].size, len(query), len(key)))
    for i, m in enumerate(query):
        for j, n in enumerate(key):
            share = math.log(1 + c * abs(float(m - n))) / math.log(1 + c * max(float(m), threshold))
            for h in range(len(out)):
                out[h, i, j] = p["b2"][h]
                for u in range(p["b1"].size):
                    out[h, i, j] += p["w2"][u, h] * max(0.0, p["w1"][u] * share + p["b1"][u])
    return out


@jax.jit
def biased(params, positions):
    tables = ENCODER.tables(ENCODER.prepare(params, positions.length, DIMS), positions)
    return ENCODER.bias(tables, None, None, positions)


def test_a_bias_is_its_network():
    params = drawn()
    got = biased(params, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    np.testing.assert_allclose(got, [naive(params, q, k) for q, k in zip(QUERY, KEY, strict=True)], rtol=1e-5, atol=1e-6)
    assert got.dtype == jnp.float32
    mapped = jax.vmap(lambda q, k: biased(params, rj.Positions(query=q, key=k)))(jnp.asarray(QUERY), jnp.asarray(KEY))
    np.testing.assert_allclose(mapped, got, rtol=1e-6, atol=1e-6)
    halves = biased(params, rj.Positions(query=jnp.asarray(QUERY[0] / 2), key=jnp.asarray(KEY[0] / 2)))
    np.testing.assert_allclose(halves, naive(params, QUERY[0] / 2, KEY[0] / 2), rtol=1e-5, atol=1e-6)


def test_the_paper_starts_at_these_numbers():
    initial = rj.Fire().init(jax.random.key(0), DIMS)
    assert float(initial["log_c"]) == pytest.approx(math.log(0.1), rel=1e-6)
    assert float(initial["log_threshold"]) == pytest.approx(math.log(512), rel=1e-6)
    assert {name: x.shape for name, x in initial.items() if x.ndim} == {"w1": (32,), "b1": (32,), "w2": (32, 3), "b2": (3,)}
    assert np.abs(initial["w1"]).max() <= 1
    for name in ("w2", "b2"):  # 32 inputs
        assert 0 < np.abs(initial[name]).max() <= 32**-0.5


@settings(deadline=None, max_examples=20)
@given(
    gaps=st.lists(st.integers(0, 5), min_size=5, max_size=5),
    shift=st.integers(1, 20),
    beyond=st.integers(30, 10_000),
)
def test_below_the_threshold_only_distances_count_and_above_it_positions_too(gaps, shift, beyond):
    params = drawn() | {"log_threshold": jnp.log(50.0)}
    positions = np.cumsum(gaps)  # below 26; with the shift, below 46
    here, there = (biased(params, rj.Positions(query=jnp.asarray(p))) for p in (positions, positions + shift))
    np.testing.assert_allclose(there, here, atol=1e-6)
    # above, the same distance is less of the query's position
    below, above = (biased(params, rj.Positions(query=jnp.array([p]), key=jnp.array([p - 20]))) for p in (45, 50 + beyond))
    expected = naive(params, [50 + beyond], [30 + beyond])
    np.testing.assert_allclose(above, expected, atol=1e-6)
    assert np.abs(above - below).max() > 1e-3
    # what does not change there is distance 0: the network of 0
    zero, same = (biased(params, rj.Positions(query=jnp.array([p]))) for p in (0, 50 + beyond))
    np.testing.assert_array_equal(zero, same)


def test_the_threshold_itself_belongs_below():
    params = drawn() | {"log_threshold": jnp.log(50.0)}
    positions, below, above = (biased(params, rj.Positions(query=jnp.array([p]), key=jnp.array([p - 9]))) for p in (50, 12, 51))
    np.testing.assert_allclose(positions, below, atol=1e-6)
    assert np.abs(above - below).max() > 1e-4


@settings(deadline=None, max_examples=30)
@given(log_c=st.floats(-20, 20, width=32), log_threshold=st.floats(-10, 20, width=32))
def test_c_and_threshold_are_positive_whatever_is_stored(log_c, log_threshold):
    """The network's input: from 0 to 1 for every key before its query; read off a network that is the identity."""
    identity = {"w1": jnp.ones(5), "b1": jnp.zeros(5), "w2": jnp.full((5, 3), 0.2), "b2": jnp.zeros(3)}
    params = identity | {"log_c": jnp.float32(log_c), "log_threshold": jnp.float32(log_threshold)}
    positions = rj.Positions(query=jnp.array([1, 30, 1000, 100_000]), key=jnp.array([0, 1, 3, 7, 20]))
    share = np.asarray(biased(params, positions), np.float64)
    causal = np.asarray(positions.visible())
    assert np.isfinite(share).all()
    assert (share >= 0).all()
    assert (share[:, causal] <= 1 + 1e-5).all()
    np.testing.assert_allclose(share, naive(params, np.asarray(positions.query), np.asarray(positions.key)), rtol=2e-4, atol=1e-6)


def test_decoding_is_the_row_of_the_whole_and_packing_the_documents():
    params = drawn() | {"log_threshold": jnp.log(3.0)}  # most queries are beyond
    whole = biased(params, rj.Positions(query=jnp.arange(9)))
    for t in (0, 4, 8):
        one = biased(params, rj.Positions(query=jnp.array([t]), key=jnp.arange(9)))
        np.testing.assert_allclose(one, whole[:, t : t + 1], rtol=1e-6, atol=1e-7)
    packed = biased(params, rj.Positions(query=jnp.array([0, 1, 2, 3, 4, 0, 1, 2, 3])))
    np.testing.assert_allclose(packed[:, :5, :5], whole[:, :5, :5], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(packed[:, 5:, 5:], whole[:, :4, :4], rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_formula():
    params = drawn()
    query, key = np.array([0, 5, 70, 10**6]), np.array([0, 0, 6, 10**6])
    weight = np.random.default_rng(1).normal(size=(3, 4, 4))
    where = rj.Positions(query=jnp.asarray(query), key=jnp.asarray(key))
    derivatives = jax.grad(lambda params: jnp.sum(jnp.asarray(weight, jnp.float32) * biased(params, where)))(params)
    for name, x in params.items():
        for index in np.ndindex(x.shape):
            if index and index[0] > 1:
                continue  # two units are enough
            difference = 0.0
            for sign in (1, -1):
                moved = {n: np.array(y, np.float64) for n, y in params.items()}
                moved[name][index] += sign * 1e-6
                difference += sign * float(np.sum(weight * naive(moved, query, key))) / 2e-6
            assert float(derivatives[name][index]) == pytest.approx(difference, rel=1e-3, abs=1e-4), (name, index)


@for_each("positions", [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 60.0, 1e7]])
def test_gradients_are_finite_at_distance_0_and_far(positions):
    derivatives = jax.grad(lambda params, p: jnp.sum(biased(params, rj.Positions(query=p)) ** 2), argnums=(0, 1))(
        drawn(), jnp.array(positions)
    )
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(derivatives))
    assert np.asarray(derivatives[0]["b2"]).any()


def test_attention_adds_it_in_float32_under_bfloat16():
    q, k, v = (x.astype(jnp.bfloat16) for x in jax.random.normal(jax.random.key(0), (3, 5, 3, 2)))
    params = drawn()
    positions = np.array([0, 2, 3, 90, 110])

    def hook(q, k, here):
        added = ENCODER.bias(params, q, k, here)
        assert added.dtype == jnp.float32
        return added

    got = jax.jit(lambda: attend(q, k, v, rj.Positions(query=jnp.asarray(positions)), bias=hook, block_size=2))()
    scores = np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in (q, k))) / math.sqrt(2)
    weights = np.where(np.tri(5, dtype=bool), np.exp(scores + naive(params, positions, positions)), 0)
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), np.asarray(v, np.float64))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=0.02)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.Fire(hidden=0), "Fire hidden must be at least 1, got 0; the paper has 32"),
        (lambda: rj.Fire(init_c=0.0), "Fire init_c must be positive, got 0.0; the paper has 0.1"),
        (lambda: rj.Fire(init_c=math.inf), "Fire init_c must be finite, got inf"),
        (lambda: rj.Fire(init_threshold=-1.0), "Fire init_threshold must be positive, got -1.0; the paper has 512.0"),
        (lambda: rj.Fire(init_threshold=math.nan), "Fire init_threshold must be finite, got nan"),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
