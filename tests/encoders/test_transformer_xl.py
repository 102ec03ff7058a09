"""Transformer-XL's relative attention against its four terms in float64 loops."""

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
ENCODER = rj.TransformerXL(base=100.0)
QUERY = np.array([[0, 3, 7, 40], [2, 2, 300, 130]])  # neither contiguous nor sorted
KEY = np.array([[0, 1, 5, 40, 41], [4, 2, 9, 350, 3]])


def drawn(seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), ENCODER.init(jax.random.key(0), DIMS))


def contents(*leading, dtype=jnp.float32):
    return (jax.random.normal(jax.random.key(i), (*leading, n, 3, 2)).astype(dtype) for i, n in enumerate((4, 5)))


def wide(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def naive(params, q, k, query, key, base=100.0):
    """arXiv:1901.02860, section 3.3, terms b, c and d over sqrt(D): all but q . k. float64 [H, Tq, Tk]."""
    u, v, w = wide(params["u"], params["v"], params["w"])  # w: what sines and cosines of each frequency give each head
    q, k = wide(q, k)
    heads, dim = u.shape
    out = np.zeros((heads, len(query), len(key)))
    for i, m in enumerate(query):
        for j, n in enumerate(key):
            for h in range(heads):
                for d in range(dim):
                    place = 0.0
                    for f in range(w.shape[1]):
                        angle = float(m - n) * base ** (-2 * f / (2 * w.shape[1]))
                        place += w[0, f, h, d] * math.sin(angle) + w[1, f, h, d] * math.cos(angle)
                    out[h, i, j] += u[h, d] * k[j, h, d] + (q[i, h, d] + v[h, d]) * place
    return out / math.sqrt(dim)


@jax.jit
def biased(params, q, k, positions):
    tables = ENCODER.tables(ENCODER.prepare(params, positions.length, DIMS), positions)
    return ENCODER.bias(tables, q, k, positions)


@for_each("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_is_its_three_terms(dtype):
    params = drawn()
    q, k = contents(2, dtype=dtype)
    got = biased(params, q, k, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    expected = [naive(params, *each) for each in zip(q, k, QUERY, KEY, strict=True)]
    np.testing.assert_allclose(got, expected, atol=2e-4)
    assert got.dtype == jnp.float32
    mapped = jax.vmap(lambda q, k, m, n: biased(params, q, k, rj.Positions(query=m, key=n)))(
        q, k, jnp.asarray(QUERY), jnp.asarray(KEY)
    )
    np.testing.assert_allclose(mapped, got, atol=1e-5)


def test_contents_may_have_a_batch_where_positions_have_none():
    params = drawn()
    q, k = contents(2)
    got = biased(params, q, k, rj.Positions(query=jnp.asarray(QUERY[0]), key=jnp.asarray(KEY[0])))
    np.testing.assert_allclose(got, [naive(params, a, b, QUERY[0], KEY[0]) for a, b in zip(q, k, strict=True)], atol=2e-4)


def test_with_q_dot_k_it_is_the_papers_score():
    """(q + u) . k + (q + v) . W R, over sqrt(D); then a softmax."""
    params = drawn()
    q, k, v = jax.random.normal(jax.random.key(0), (3, 5, 3, 2))
    positions = np.array([0, 1, 4, 5, 9])
    got = jax.jit(
        lambda: attend(
            q, k, v, rj.Positions(query=jnp.asarray(positions)), bias=lambda *a: ENCODER.bias(params, *a), block_size=2
        )
    )()
    scores = np.einsum("thd,shd->hts", *wide(q, k)) / math.sqrt(2) + naive(params, q, k, positions, positions)
    weights = np.where(np.tri(5, dtype=bool), np.exp(scores - scores.max(-1, keepdims=True)), 0)
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), *wide(v))
    np.testing.assert_allclose(got, expected, atol=1e-4)


@settings(deadline=None, max_examples=15)
@given(shift=st.integers(-2000, 2000))
def test_only_distances_count(shift):
    params = drawn()
    q, k = contents()
    here, there = (
        biased(params, q, k, rj.Positions(query=jnp.asarray(QUERY[0] + s), key=jnp.asarray(KEY[0] + s))) for s in (0, shift)
    )
    np.testing.assert_allclose(here, there, atol=5e-3)  # float32 angles at 2,000: 1e-4, times what W and q weigh


def test_the_sign_of_the_distance_counts():
    """R(q - k), not R(|q - k|): only the cosines' part is even."""
    params = drawn()
    q, k = contents()
    one = [rj.Positions(query=jnp.full(4, m), key=jnp.full(5, 10)) for m in (7, 13)]
    behind, ahead = (np.asarray(biased(params, q, k, positions), np.float64) for positions in one)
    only_cosines = params | {"w": params["w"].at[0].set(0)}
    np.testing.assert_allclose(*(biased(only_cosines, q, k, positions) for positions in one), atol=1e-5)
    only_sines = {"u": jnp.zeros((3, 2)), "v": params["v"], "w": params["w"].at[1].set(0)}
    back, forth = (biased(only_sines, q, k, positions) for positions in one)
    np.testing.assert_allclose(back, -forth, atol=1e-5)
    assert np.abs(behind - ahead).max() > 0.1


@for_each("positions", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 50, 10**5, 10**7]])
def test_gradients_are_finite(positions):
    """To parameters, queries and keys; head_dim is 2."""
    params, (q, _) = drawn(), contents()

    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(params, q, k):
        return jnp.sum(jnp.sin(biased(params, q, k, rj.Positions(query=jnp.asarray(positions)))))

    derivatives = gradients(params, q, q[::-1])
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(derivatives))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(derivatives))


def test_gradients_are_those_of_the_formula():
    params, (q, k) = drawn(), contents()
    weight = np.random.default_rng(1).normal(size=(3, 4, 5))
    positions = rj.Positions(query=jnp.asarray(QUERY[0]), key=jnp.asarray(KEY[0]))
    derivatives = jax.grad(lambda p: jnp.sum(jnp.asarray(weight, jnp.float32) * biased(p["own"], p["q"], p["k"], positions)))(
        {"own": params, "q": q, "k": k}
    )
    for name, index in (
        ("u", (1, 0)),
        ("v", (2, 1)),
        ("w", (0, 1, 0, 1)),
        ("w", (1, 2, 2, 0)),
        ("q", (3, 1, 0)),
        ("k", (0, 2, 1)),
    ):
        difference = 0.0
        for sign in (1, -1):
            moved = {n: np.array(x, np.float64) for n, x in (params | {"q": q, "k": k}).items()}
            moved[name][index] += sign * 1e-5
            value = naive(moved, moved["q"], moved["k"], QUERY[0], KEY[0])
            difference += sign * float(np.sum(weight * value)) / 2e-5
        of = derivatives[name] if name in "qk" else derivatives["own"][name]
        assert float(of[index]) == pytest.approx(difference, rel=1e-3, abs=1e-3), (name, index)


def test_initial_numbers_have_the_stated_spread():
    dims = rj.Dims(width=64, num_heads=16, head_dim=16)
    initial = rj.TransformerXL(init_scale=0.5).init(jax.random.key(0), dims)
    for name in ("u", "v", "w"):
        assert float(jnp.std(initial[name])) == pytest.approx(0.5, rel=0.15)
    assert abs(np.corrcoef(np.ravel(initial["u"]), np.ravel(initial["v"]))[0, 1]) < 0.3  # drawn apart
    zero = rj.TransformerXL(init_scale=0.0).init(jax.random.key(0), DIMS)
    q, k = contents()
    got = biased(zero, q, k, rj.Positions(query=jnp.asarray(QUERY[0]), key=jnp.asarray(KEY[0])))
    np.testing.assert_array_equal(got, 0)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.TransformerXL(init_scale=-0.1), "TransformerXL init_scale must not be negative, got -0.1"),
        (
            lambda: rj.check_requirements(ENCODER, rj.Dims(width=7, num_heads=1, head_dim=7), max_position=9),
            "TransformerXL needs an even width, got 7: its sinusoids are pairs of a sine and a cosine",
        ),
        (lambda: rj.TransformerXL(base=0.0), "base must be positive, got 0.0"),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
