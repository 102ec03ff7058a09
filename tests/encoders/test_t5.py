"""T5's buckets against transformers' and the published float32 formula; T5's bias against a table read by loops."""

import json
import math
import re
from functools import partial
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

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "transformers_5_24.json").read_text())["t5_buckets"]
DIMS = rj.Dims(width=12, num_heads=3, head_dim=4)
QUERY = np.array([[0, 3, 7, 40], [2, 2, 900, 130]])  # neither contiguous nor sorted, another batch entry each
KEY = np.array([[0, 1, 5, 40, 41], [4, 2, 9, 100_000, 3]])


def naive_bucket(relative, bidirectional, num_buckets, max_distance):
    """The released code for one number, a float32 step at a time."""
    buckets, first = num_buckets, 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return first + min(buckets - 1, exact + int(share * np.float32(buckets - exact)))


def naive_bias(table, query, key, **options):
    """[B, H, Tq, Tk], a pair at a time."""
    return np.array(
        [
            [[[row[naive_bucket(int(n) - int(m), **options)] for n in keys] for m in queries] for row in table.T]
            for queries, keys in zip(query, key, strict=True)
        ]
    )


def drawn(encoder):
    """Parameters of size 1, so that no two buckets look alike."""
    return {"table": jnp.asarray(np.random.default_rng(0).normal(size=(encoder.num_buckets, DIMS.num_heads)), jnp.float32)}


@partial(jax.jit, static_argnums=0)
def biased(encoder, params, positions):
    prepared = encoder.prepare(params, positions.length, DIMS)
    return encoder.bias(encoder.tables(prepared, positions), None, None, positions)


def test_the_fixture_has_both_directions_and_the_smallest_sizes_work():
    assert [(case["bidirectional"], case["num_buckets"], case["max_distance"]) for case in CASES] == [
        (True, 32, 128),
        (True, 16, 64),
        (False, 32, 128),
        (False, 16, 64),
    ]

    back = jnp.arange(0, -6, -1)
    assert rj.t5_bucket(back, bidirectional=False, num_buckets=2, max_distance=2).tolist() == [0, 1, 1, 1, 1, 1]
    assert rj.t5_bucket(back, bidirectional=False, num_buckets=3, max_distance=4).tolist() == [0, 1, 2, 2, 2, 2]
    assert rj.t5_bucket(-back, bidirectional=True, num_buckets=4, max_distance=2).tolist() == [0, 3, 3, 3, 3, 3]
    assert rj.T5Bias().retunable == frozenset()


@for_each("case", CASES)
def test_buckets_are_those_of_transformers(case):
    options = {name: case[name] for name in ("bidirectional", "num_buckets", "max_distance")}
    first, last = case["relative_key_minus_query"]
    relative = np.arange(first, last + 1)
    np.testing.assert_array_equal(rj.t5_bucket(jnp.asarray(relative), **options), case["buckets"])
    assert [naive_bucket(int(r), **options) for r in relative] == case["buckets"]  # and so is the naive one, used below


@settings(deadline=None, max_examples=40)
@given(
    bidirectional=st.booleans(), half=st.integers(1, 40), odd=st.booleans(), more=st.integers(1, 2000), seed=st.integers(0, 99)
)
def test_buckets_are_the_formula(bidirectional, half, odd, more, seed):
    num_buckets = 4 * half if bidirectional else 2 * half + odd
    max_distance = (num_buckets // 2 if bidirectional else num_buckets) // 2 + more
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
    near, far = np.random.default_rng(seed).integers(-max_distance - 3, max_distance + 4, 32), [0, max_distance, -max_distance]
    relative = np.concatenate([near, far, [1 - max_distance, max_distance - 1, -max_distance - 1]])
    got = np.asarray(rj.t5_bucket(jnp.asarray(relative), **options))
    assert got.tolist() == [naive_bucket(int(r), **options) for r in relative]
    assert got.dtype == np.int32


@for_each("bidirectional", [False, True])
def test_from_max_distance_on_all_is_one_bucket(bidirectional):
    far = np.array([128, 129, 5000, 2**24 + 1, 2**31 - 2])
    back, ahead = (rj.t5_bucket(jnp.asarray(sign * far), bidirectional=bidirectional) for sign in (-1, 1))
    np.testing.assert_array_equal(back, 15 if bidirectional else 31)
    np.testing.assert_array_equal(ahead, 31 if bidirectional else 0)
    assert int(rj.t5_bucket(jnp.asarray(-127), bidirectional=True)) == 15
    assert int(rj.t5_bucket(jnp.asarray(-80), bidirectional=True)) == 14


@for_each("bidirectional", [False, True])
@for_each("sizes", [(32, 128), (8, 11)])
def test_a_bias_is_the_table_read_pair_by_pair(bidirectional, sizes):
    options = {"bidirectional": bidirectional, "num_buckets": sizes[0], "max_distance": sizes[1]}
    encoder = rj.T5Bias(**options)
    params = drawn(encoder)
    got = biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    np.testing.assert_array_equal(got, naive_bias(np.asarray(params["table"]), QUERY, KEY, **options))
    assert got.dtype == jnp.float32
    alone = encoder.bias(params, None, None, rj.Positions(query=jnp.asarray(QUERY[1]), key=jnp.asarray(KEY[1])))  # eager
    np.testing.assert_array_equal(alone, got[1])
    mapped = jax.vmap(lambda q, k: biased(encoder, params, rj.Positions(query=q, key=k)))(jnp.asarray(QUERY), jnp.asarray(KEY))
    np.testing.assert_array_equal(mapped, got)


def test_queries_of_a_batch_may_share_their_keys():
    encoder = rj.T5Bias(bidirectional=True)
    params = drawn(encoder)
    got = biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY[0])))
    expected = naive_bias(np.asarray(params["table"]), QUERY, KEY[[0, 0]], bidirectional=True, num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(got, expected)


@settings(deadline=None, max_examples=20)
@given(shift=st.integers(-100_000, 2**30), bidirectional=st.booleans())
def test_only_distances_count(shift, bidirectional):
    encoder = rj.T5Bias(bidirectional=bidirectional)
    params = drawn(encoder)
    here, there = (
        biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY + s), key=jnp.asarray(KEY + s))) for s in (0, shift)
    )
    np.testing.assert_array_equal(here, there)


def test_attention_adds_it_to_the_scores_in_bfloat16_too():
    q, k, v = (x.astype(jnp.bfloat16) for x in jax.random.normal(jax.random.key(0), (3, 5, 3, 4)))
    encoder = rj.T5Bias(num_buckets=4, max_distance=6)
    params = drawn(encoder)
    places = np.array([0, 2, 3, 9, 11])

    def hook(q, k, positions):
        added = encoder.bias(params, q, k, positions)
        assert added.dtype == jnp.float32
        return added

    got = attend(q, k, v, rj.Positions(query=jnp.asarray(places)), bias=hook, block_size=2)
    scores = np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in (q, k))) / 2
    options = {"bidirectional": False, "num_buckets": 4, "max_distance": 6}
    scores += naive_bias(np.asarray(params["table"], np.float64), places[None], places[None], **options)[0]
    weights = np.where(np.tri(5, dtype=bool), np.exp(scores), 0)
    expected = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), np.asarray(v, np.float64))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=0.02)
    assert got.dtype == jnp.bfloat16


def test_a_buckets_gradient_counts_its_pairs():
    encoder = rj.T5Bias(num_buckets=6, max_distance=9)
    derivatives = jax.grad(
        lambda params: jnp.sum(biased(encoder, params, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY))))
    )(drawn(encoder))["table"]
    buckets = [
        naive_bucket(int(n) - int(m), False, 6, 9) for row, keys in zip(QUERY, KEY, strict=True) for m in row for n in keys
    ]
    expected = np.bincount(buckets, minlength=6)
    np.testing.assert_array_equal(derivatives, np.repeat(expected[:, None], 3, axis=1))


def test_initial_numbers_have_the_stated_spread():
    table = np.asarray(rj.T5Bias(num_buckets=512, max_distance=1024, init_scale=0.5).init(jax.random.key(0), DIMS)["table"])
    assert table.std() == pytest.approx(0.5, rel=0.1)
    assert abs(table.mean()) < 0.05
    np.testing.assert_array_equal(rj.T5Bias(init_scale=0.0).init(jax.random.key(0), DIMS)["table"], 0)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.T5Bias(num_buckets=1), "num_buckets must be at least 2, got 1; the usual value is 32"),
        (lambda: rj.T5Bias(num_buckets=2, bidirectional=True), "must be even and at least 4 when bidirectional, got 2"),
        (lambda: rj.T5Bias(num_buckets=7, bidirectional=True), "must be even and at least 4 when bidirectional, got 7"),
        (
            lambda: rj.T5Bias(max_distance=16),
            "must be above 16, got 16: every distance below 16 has a bucket by itself; raise max_distance, or lower num_buckets",
        ),
        (
            lambda: rj.t5_bucket(jnp.arange(3), bidirectional=True, num_buckets=32, max_distance=8),
            "max_distance must be above 8, got 8: every distance below 8 has a bucket by itself",
        ),
        (lambda: rj.t5_bucket(jnp.arange(3), bidirectional=True, num_buckets=3), "even and at least 4 when bidirectional, got 3"),
        (lambda: rj.T5Bias(init_scale=-0.5), "T5Bias init_scale must not be negative, got -0.5"),
        (lambda: rj.T5Bias(init_scale=math.nan), "T5Bias init_scale must be finite, got nan"),
        (
            lambda: rj.t5_bucket(jnp.array([0.5]), bidirectional=False),
            "must be integers, got float32; round them, or use a bias of real distances, such as ALiBi",
        ),
        (
            lambda: biased(rj.T5Bias(), drawn(rj.T5Bias()), rj.Positions(query=jnp.array([0.0, 1.0]))),
            "integer positions, got float32",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
