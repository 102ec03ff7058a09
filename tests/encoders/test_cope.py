"""CoPE against a double loop in float64: what a query does not see must not count."""

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
COUNTS = 4


def drawn(rows=COUNTS):
    return {"rows": jnp.asarray(np.random.default_rng(0).normal(size=(rows, 2)), jnp.float32)}


def contents(*shape, dtype=jnp.float32, scale=1.0):
    return scale * jax.random.normal(jax.random.key(0), (*shape, 3, 2)).astype(dtype)


def wide(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def counts(q, k, query_order, key_order):
    """arXiv:2405.18719, eq. 3: float64 [H, Tq, Tk], nan where the query does not see the key. Not clipped."""
    q, k = wide(q, k)
    out = np.full((q.shape[1], len(query_order), len(key_order)), np.nan)
    for h, i, j in np.ndindex(out.shape):
        if key_order[j] <= query_order[i]:
            out[h, i, j] = 0
            for between in range(len(key_order)):
                if key_order[j] <= key_order[between] <= query_order[i]:
                    score = sum(q[i, h, d] * k[between, h, d] for d in range(q.shape[2])) / math.sqrt(q.shape[2])
                    out[h, i, j] += 1 / (1 + math.exp(-score))
    return out


def naive(params, q, k, query_order, key_order):
    """Eq. 4 and 5: q . e(p) with e between whole counts read off the line between its neighbours."""
    rows, (wide_q,) = np.asarray(params["rows"], np.float64), wide(q)
    out = counts(q, k, query_order, key_order)
    for h, i, j in np.ndindex(out.shape):
        if not math.isnan(out[h, i, j]):
            p = min(out[h, i, j], len(rows) - 1)
            low, share = math.floor(p), p - math.floor(p)
            high = min(low + 1, len(rows) - 1)
            out[h, i, j] = sum(
                wide_q[i, h, d] * ((1 - share) * rows[low, d] + share * rows[high, d]) for d in range(rows.shape[1])
            )
    return out


def assert_seen_equal(got, expected, **tolerance):
    got, expected = np.asarray(got), np.asarray(expected)
    assert np.isfinite(got).all()  # also where it does not count
    seen = ~np.isnan(expected)
    assert seen.any()
    np.testing.assert_allclose(got[seen], expected[seen], **{"atol": 1e-5} | tolerance)


@partial(jax.jit, static_argnames="rows")
def biased(params, q, k, positions, rows=COUNTS):
    encoder = rj.CoPE(max_count=rows)
    tables = encoder.tables(encoder.prepare(params, positions.length, DIMS), positions)
    return encoder.bias(tables, q, k, positions)


@for_each("dtype", [jnp.float32, jnp.bfloat16])
def test_a_bias_is_the_double_loop(dtype):
    """Seven tokens, of which about half count: on both sides of max_count - 1 = 3."""
    params, q, k = drawn(), contents(2, 7, dtype=dtype), contents(2, 7, dtype=dtype)[:, ::-1]
    positions = rj.Positions(query=jnp.arange(7))
    got = biased(params, q, k, positions)
    expected = np.stack([naive(params, a, b, range(7), range(7)) for a, b in zip(q, k, strict=True)])
    assert_seen_equal(got, expected)
    assert got.dtype == jnp.float32
    reached = counts(q[0], k[0], range(7), range(7))
    assert np.nanmax(reached) > 3 > np.nanmin(reached)
    assert_seen_equal(jax.vmap(lambda q, k: biased(params, q, k, positions))(q, k), expected)


def test_it_reads_no_positions_only_their_order():
    params, q = drawn(), contents(7)
    plain = biased(params, q, q[::-1], rj.Positions(query=jnp.arange(7)))
    for positions in (jnp.array([0, 0, 1, 5, 5, 90, 2]), jnp.linspace(0.0, 1.0, 7)):
        np.testing.assert_array_equal(biased(params, q, q[::-1], rj.Positions(query=positions)), plain)
    # keys given apart: their positions are their order, unless one is given
    query, key = jnp.array([4, 9]), jnp.array([0, 3, 4, 8, 20])
    got = biased(params, q[:2], q[2:], rj.Positions(query=query, key=key))
    assert_seen_equal(got, naive(params, q[:2], q[2:], [4, 9], [0, 3, 4, 8, 20]))
    ordered = rj.Positions(query=jnp.array([0, 1]), key=jnp.zeros(5, int), query_order=query, key_order=key)
    np.testing.assert_array_equal(biased(params, q[:2], q[2:], ordered), got)


@settings(deadline=None, max_examples=15)
@given(order=st.permutations(range(7)))
def test_keys_may_lie_in_any_order_in_the_cache(order):
    params, q = drawn(), contents(7)
    k = q[::-1]
    mixed = rj.Positions(query=jnp.arange(7), key=jnp.array(order))
    got = biased(params, q, k, mixed)
    assert_seen_equal(got, naive(params, q, k, range(7), order))
    each = jnp.array([order, range(7)])  # and in another one in each example's
    both = biased(params, jnp.stack([q, q]), jnp.stack([k, k]), rj.Positions(query=jnp.array([range(7)] * 2), key=each))
    assert_seen_equal(both, np.stack([naive(params, q, k, range(7), o) for o in (order, range(7))]))


def test_counts_are_clipped_at_the_last_row_and_one_row_is_a_constant():
    q = 100.0 * jnp.ones((7, 3, 2))  # every gate is 1
    got = np.asarray(biased(drawn(), q, q, rj.Positions(query=jnp.arange(7))))
    dots = 100 * np.asarray(drawn()["rows"], np.float64).sum(-1)
    for m in range(7):
        for n in range(m + 1):
            assert got[0, m, n] == pytest.approx(dots[min(m - n + 1, 3)], rel=1e-5)
    one = biased(drawn(1), contents(7), contents(7)[::-1], rj.Positions(query=jnp.arange(7)), rows=1)
    expected = np.einsum("thd,d->ht", *wide(contents(7), drawn(1)["rows"][0]))
    assert_seen_equal(one, naive(drawn(1), contents(7), contents(7)[::-1], range(7), range(7)))
    for n in range(7):
        np.testing.assert_allclose(np.asarray(one)[:, n:, n], expected[:, n:], rtol=1e-5)


def test_closed_gates_count_nothing():
    q = jnp.ones((7, 3, 2))
    got = biased(drawn(), q, -200 * q, rj.Positions(query=jnp.arange(7)))
    expected = float(np.asarray(drawn()["rows"])[0].sum())
    np.testing.assert_allclose(np.asarray(got)[:, np.tri(7, dtype=bool)], expected, rtol=1e-6)


def test_what_a_query_does_not_see_changes_nothing_to_the_last_bit_and_has_no_gradient():
    params, q = drawn(), contents(7)
    k = q[::-1]
    plain = np.asarray(biased(params, q, k, rj.Positions(query=jnp.arange(7))))
    for t in (0, 3, 5):
        rubbish = jnp.where((jnp.arange(7) > t)[:, None, None], 1e4, k)
        got = np.asarray(biased(params, q, rubbish, rj.Positions(query=jnp.arange(7))))
        np.testing.assert_array_equal(got[:, : t + 1, : t + 1], plain[:, : t + 1, : t + 1])

    def seen(q, k, t):
        return jnp.sum(biased(params, q, k, rj.Positions(query=jnp.arange(7)))[:, t, : t + 1])

    for t in (0, 3):
        to_q, to_k = jax.grad(seen, argnums=(0, 1))(q, k, t)
        np.testing.assert_array_equal(np.asarray(to_k)[t + 1 :], 0)
        np.testing.assert_array_equal(np.delete(np.asarray(to_q), t, axis=0), 0)
        assert np.asarray(to_k)[: t + 1].any()


def test_decoding_against_a_cache_with_rubbish_is_the_row_of_the_whole():
    params, q = drawn(), contents(7)
    k = q[::-1]
    whole = np.asarray(biased(params, q, k, rj.Positions(query=jnp.arange(7))))
    for t in (0, 4, 6):
        cache = jnp.where((jnp.arange(7) > t)[:, None, None], -300.0, k)
        one = biased(params, q[t : t + 1], cache, rj.Positions(query=jnp.array([t]), key=jnp.arange(7)))
        np.testing.assert_allclose(np.asarray(one)[:, 0, : t + 1], whole[:, t, : t + 1], atol=1e-5)
        assert np.isfinite(np.asarray(one)).all()


def test_packed_documents_count_as_they_do_alone():
    params, q = drawn(), contents(7)
    k = q[::-1]
    positions = jnp.array([0, 1, 2, 3, 0, 1, 2])
    packed = np.asarray(biased(params, q, k, rj.Positions(query=positions)))
    for part in (slice(0, 4), slice(4, 7)):
        alone = naive(params, q[part], k[part], range(part.stop - part.start), range(part.stop - part.start))
        assert_seen_equal(packed[:, part, part], alone)


def test_attention_in_blocks_is_attention_at_once():
    params, (q, k, v) = drawn(), jax.random.normal(jax.random.key(1), (3, 7, 3, 2))
    encoder = rj.CoPE(max_count=COUNTS)
    scores = np.einsum("thd,shd->hts", *wide(q, k)) / math.sqrt(2) + np.nan_to_num(naive(params, q, k, range(7), range(7)))
    weights = np.where(np.tri(7, dtype=bool), np.exp(scores), 0)
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), *wide(v))
    for block in (3, 7):
        positions = rj.Positions(query=jnp.array([0, 1, 2, 3, 0, 1, 2]))
        got = jax.jit(
            lambda block=block, p=positions: attend(q, k, v, p, bias=lambda *a: encoder.bias(params, *a), block_size=block)
        )()
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_gradients_are_those_of_the_formula():
    """Through the gates as well: the slope of the line between two rows."""
    params, q = drawn(), contents(7)
    k = q[::-1]
    weight = np.where(np.tri(7, dtype=bool), np.random.default_rng(1).normal(size=(3, 7, 7)), 0)
    positions = rj.Positions(query=jnp.arange(7))

    def total(inputs):
        return jnp.sum(jnp.asarray(weight, jnp.float32) * biased({"rows": inputs["rows"]}, inputs["q"], inputs["k"], positions))

    inputs = {"rows": params["rows"], "q": q, "k": k}
    derivatives = jax.grad(total)(inputs)
    for name, index in (("rows", (0, 1)), ("rows", (3, 0)), ("q", (5, 1, 0)), ("k", (0, 2, 1)), ("k", (4, 0, 0))):
        difference = 0.0
        for sign in (1, -1):
            moved = {n: np.array(x, np.float64) for n, x in inputs.items()}
            moved[name][index] += sign * 1e-6
            value = np.nan_to_num(naive(moved, moved["q"], moved["k"], range(7), range(7)))
            difference += sign * float(np.sum(weight * value)) / 2e-6
        assert float(derivatives[name][index]) == pytest.approx(difference, rel=1e-3, abs=1e-4), (name, index)


@for_each("scale", [0.0, 1.0, 1e3])
def test_gradients_are_finite(scale):
    q = contents(7, scale=scale)

    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(params, q, k):
        return jnp.sum(jnp.sin(biased(params, q, k, rj.Positions(query=jnp.arange(7)))))

    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(gradients(drawn(), q, q)))


def test_the_papers_rows_start_at_nothing_and_take_a_gradient():
    encoder = rj.CoPE(max_count=COUNTS)
    initial = encoder.init(jax.random.key(0), DIMS)
    positions = rj.Positions(query=jnp.arange(7))
    np.testing.assert_array_equal(biased(initial, contents(7), contents(7), positions), 0)
    derivatives = jax.grad(lambda p: jnp.sum(biased(p, contents(7), contents(7), positions)[:, -1]))(initial)["rows"]
    assert np.asarray(derivatives).any()
    spread = rj.CoPE(max_count=512, init_scale=0.5).init(jax.random.key(0), DIMS)["rows"]
    assert float(jnp.std(spread)) == pytest.approx(0.5, rel=0.1)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.CoPE(max_count=0), "CoPE max_count must be at least 1, got 0; it is one more than the largest count"),
        (lambda: rj.CoPE(init_scale=-1.0), "CoPE init_scale must not be negative, got -1.0"),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
