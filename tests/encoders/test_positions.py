"""Positions are data: worked values, distributions, and what does not depend on padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each
from rope_jax.model.attention import attend


@settings(deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(length=st.integers(0, 9), offset=st.integers(-(2**30), 2**30))
def test_contiguous_counts_from_its_offset(length: int, offset: int) -> None:
    got = rj.positions.contiguous(length, offset=offset)
    assert got.dtype == jnp.int32
    assert got.tolist() == list(range(offset, offset + length))


def test_contiguous_begins_at_zero_or_at_the_offset_of_each_example() -> None:
    assert rj.positions.contiguous(5).tolist() == [0, 1, 2, 3, 4]
    for offset, expected in (
        ([0, 7], [[0, 1, 2], [7, 8, 9]]),
        ([[0, 7], [-2, 100]], [[[0, 1, 2], [7, 8, 9]], [[-2, -1, 0], [100, 101, 102]]]),
        ([5], [[5, 6, 7]]),
    ):
        assert rj.positions.contiguous(3, offset=jnp.array(offset)).tolist() == expected
    # a cache index is often kept as int8 or uint8; the positions after it must not overflow with it
    assert rj.positions.contiguous(3, offset=jnp.array(127, jnp.int8)).tolist() == [127, 128, 129]
    assert rj.positions.contiguous(2, offset=jnp.array([255], jnp.uint8)).tolist() == [[255, 256]]

    assert jax.jit(lambda o: rj.positions.contiguous(4, offset=o))(11).tolist() == [11, 12, 13, 14]
    offsets = jnp.array([3, -1, 1000])
    rows = jax.jit(jax.vmap(lambda o: rj.positions.contiguous(2, offset=o)))(offsets)
    np.testing.assert_array_equal(rows, rj.positions.contiguous(2, offset=offsets))
    assert rows.tolist() == [[3, 4], [-1, 0], [1000, 1001]]


# masks, packing, shards: worked values


@for_each(
    ("mask", "expected"),
    [
        ([0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),  # left padding
        ([1, 1, 1, 0, 0], [0, 1, 2, 2, 2]),
        ([[0, 1, 1], [1, 1, 1], [0, 0, 0]], [[0, 0, 1], [0, 1, 2], [0, 0, 0]]),
    ],
)
def test_a_mask_counts_real_tokens(mask: list, expected: list) -> None:
    for dtype in (bool, jnp.int32, jnp.float32):
        got = rj.positions.from_mask(jnp.array(mask, dtype))
        assert got.dtype == jnp.int32
        assert got.tolist() == expected


@for_each(
    ("ids", "expected"),
    [
        ([1, 1, 1, 2, 2], [0, 1, 2, 0, 1]),
        ([1, 1, 2, 1, 1], [0, 1, 0, 0, 1]),  # an id that comes back is a new document
        ([7], [0]),
        ([1, 2, 3], [0, 0, 0]),  # documents of one token
        ([[0, 0, 0], [5, 4, 4]], [[0, 1, 2], [0, 0, 1]]),
    ],
)
def test_segments_begin_anew(ids: list, expected: list) -> None:
    assert rj.positions.from_segment_ids(jnp.array(ids)).tolist() == expected
    assert jax.jit(rj.positions.from_segment_ids)(jnp.array(ids)).tolist() == expected


@for_each(
    ("length", "ranks", "expected"),
    [
        (8, 2, [[0, 1, 6, 7], [2, 3, 4, 5]]),
        (8, 4, [[0, 7], [1, 6], [2, 5], [3, 4]]),
        (4, 1, [[0, 1, 2, 3]]),
    ],
)
def test_shards_are_cut_zig_zag(length: int, ranks: int, expected: list) -> None:
    got = [rj.positions.context_parallel(length, ranks=ranks, rank=rank).tolist() for rank in range(ranks)]
    assert got == expected


def test_shards_see_what_the_whole_sees() -> None:
    """Every rank's queries against all keys, put together, are the attention of the whole."""
    q, k, v = jax.random.normal(jax.random.key(0), (3, 12, 2, 8))
    encoder = rj.Compose(rj.RoPE(), rj.ALiBi())

    def attention(query: jax.Array, key: jax.Array) -> jax.Array:
        places = rj.Positions(query=query, key=key)
        tables = encoder.tables(encoder.prepare({}, None, rj.Dims(width=16, num_heads=2, head_dim=8)), places)
        rotated = encoder.rotate(tables, q[query], k[key])
        return attend(*rotated, v[key], places, bias=lambda q, k, here: encoder.bias(tables, q, k, here))

    shards = [rj.positions.context_parallel(12, ranks=3, rank=rank) for rank in range(3)]
    whole, everywhere = attention(jnp.arange(12), jnp.arange(12)), jnp.concatenate(shards)
    for shard in shards:
        np.testing.assert_allclose(attention(shard, everywhere), whole[shard], atol=1e-5)


# random positions


RANDOM = {
    "random_offset": lambda key, lengths, size: rj.positions.random_offset(key, lengths, size, max_position=24),
    "randomized": lambda key, lengths, size: rj.positions.randomized(key, lengths, size, max_position=24),
    "random_float": lambda key, lengths, size: rj.positions.random_float(key, lengths, size, max_position=24.0),
    "pose": lambda key, lengths, size: rj.positions.pose(key, lengths, size, max_position=24),
    "pose of 4": lambda key, lengths, size: rj.positions.pose(key, lengths, size, max_position=24, chunks=4),
}


@for_each("name", RANDOM)
@settings(deadline=None, max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(lengths=st.lists(st.integers(1, 24), min_size=3, max_size=3), seed=st.integers(0, 2**31))
def test_random_positions_rise_stay_in_range_and_know_no_padding(name: str, lengths: list[int], seed: int) -> None:
    key, drawn = jax.random.key(seed), RANDOM[name]
    wide = np.asarray(drawn(key, jnp.array(lengths), 30))
    for row, length in zip(wide, lengths, strict=True):
        assert (np.diff(row[:length]) > 0).all()
        assert (np.diff(row) >= 0).all()
        assert row.min() >= 0
        assert row.max() < 24
    narrow = np.asarray(drawn(key, jnp.array(lengths), max(lengths)))
    for row, other, length in zip(wide, narrow, lengths, strict=True):
        np.testing.assert_array_equal(row[:length], other[:length])


def test_random_positions_have_their_distributions() -> None:
    """20,000 draws of an example of 3 among 6 positions, against the probabilities counted by hand."""
    key, lengths = jax.random.key(0), jnp.full(20_000, 3)
    offsets = np.asarray(rj.positions.random_offset(key, lengths, 3, max_position=6))
    np.testing.assert_allclose(np.bincount(offsets[:, 0], minlength=4) / 20_000, np.full(4, 1 / 4), atol=0.015)
    np.testing.assert_array_equal(np.diff(offsets, axis=1), 1)
    subsets = np.asarray(rj.positions.randomized(key, lengths, 3, max_position=6))
    different, counts = np.unique(subsets, axis=0, return_counts=True)
    assert len(different) == 20  # 6 over 3, equally probable
    np.testing.assert_allclose(counts / 20_000, np.full(20, 1 / 20), atol=0.01)
    reals = np.asarray(rj.positions.random_float(key, lengths, 3, max_position=6.0))
    np.testing.assert_allclose(reals.mean(axis=0), [1.5, 3.0, 4.5], atol=0.05)  # order statistics of three uniforms
    chunks = np.asarray(rj.positions.pose(key, lengths, 3, max_position=6))
    assert (chunks[:, 0] == 0).all()
    cut_at_1 = np.diff(chunks, axis=1)[:, 0] > 1
    skipped = chunks[:, 2] - 2
    np.testing.assert_allclose(np.bincount(skipped, minlength=4) / 20_000, np.full(4, 1 / 4), atol=0.015)
    assert cut_at_1.mean() == pytest.approx(3 / 8, abs=0.015)  # the cut is 1 or 2, and a skip of 0 shows nothing

    offsets = rj.positions.random_offset(jax.random.key(0), jnp.full(200, 200, jnp.uint8), 200, max_position=1000)
    assert int(offsets[:, 0].max()) > 600


# grid


def test_grid_has_rows_and_columns_of_the_tokens() -> None:
    tokens = jnp.array([1, 5, 6, 7, 2, 5, 6, 7, 2, 9])
    rows, columns = rj.positions.grid(tokens, separator=2)
    assert rows.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert columns.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    rows, columns = rj.positions.grid(tokens, separator=2, order="snake")
    assert rows.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert columns.tolist() == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1]  # the second row counts down from the first one's end
    both = rj.positions.grid(jnp.stack([tokens, tokens[::-1]]), separator=2, order="snake")
    assert both.shape == (2, 2, 10)
    np.testing.assert_array_equal(both[:, 0], jnp.stack([rows, columns]))
    assert both[1, 1].tolist() == [0, 0, -1, -2, -3, 0, 1, 2, 3, 4]  # 9 is the first row, which ends at column 0

    # SEP a b c EOS SEP y: the row of the first token is the first, so the second begins at its end.
    tokens = jnp.array([2, 5, 6, 7, 3, 2, 7, 6, 5])
    rows, columns = rj.positions.grid(tokens, separator=2)
    assert rows.tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert columns.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    rows, columns = rj.positions.grid(tokens, separator=2, order="snake")
    assert rows.tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert columns.tolist() == [0, 1, 2, 3, 4, 4, 3, 2, 1]


@for_each("order", ["forward", "snake"])
def test_grid_is_causal(order: str) -> None:
    """A token's place depends on no later token, so that decoding gives what the whole pass gives."""
    tokens = jnp.array([1, 5, 2, 7, 2, 5, 6, 2, 2, 9])
    whole = rj.positions.grid(tokens, separator=2, order=order)
    for t in range(3, 10):
        np.testing.assert_array_equal(rj.positions.grid(tokens[:t], separator=2, order=order), whole[:, :t])


@for_each(
    ("make", "message"),
    [
        (lambda: rj.positions.contiguous(-1), "length must not be negative, got -1"),
        (lambda: rj.positions.context_parallel(10, ranks=2, rank=0), "do not divide length 10; pad it to 12"),
        (lambda: rj.positions.context_parallel(8, ranks=2, rank=2), "0 <= rank < ranks, got rank=2 and ranks=2"),
        (lambda: rj.positions.randomized(jax.random.key(0), jnp.array([9]), 9, max_position=8), "max_position 8 is below"),
        (lambda: rj.positions.random_float(jax.random.key(0), jnp.array([9]), 9, max_position=0), "must be positive, got 0"),
        (lambda: rj.positions.pose(jax.random.key(0), jnp.array([2]), 2, max_position=8, chunks=0), "at least 1, got 0"),
        (
            lambda: rj.positions.random_offset(jax.random.key(0), jnp.array([2.0]), 2, max_position=8),
            "must be integers, got float32",
        ),
        (lambda: rj.positions.random_offset(jax.random.key(0), jnp.array([], int), 2, max_position=0), "max_position 0 is below"),
        (
            lambda: jax.jit(lambda n: rj.positions.randomized(jax.random.key(0), n, 9, max_position=8))(jnp.array([2])),
            "max_position 8 is below the padded length 9",
        ),
        (lambda: rj.positions.randomized(jax.random.key(0), jnp.array([5]), 3, max_position=9), "size 3 is below .* length 5"),
        (
            lambda: rj.positions.random_float(jax.random.key(0), jnp.array([2.5]), 3, max_position=9.0),
            "must be integers, got float",
        ),
        (lambda: rj.positions.from_mask(None), "from_mask computes positions from the mask of real tokens, got None"),
        (lambda: rj.positions.from_segment_ids(None), "from_segment_ids computes positions from the segment ids"),
        (lambda: rj.positions.grid(None, separator=2), "grid computes positions from the tokens, got None"),
        (lambda: rj.positions.contiguous(3, offset=1.5), "offset must be integers, got float64"),
        (lambda: rj.positions.grid(jnp.array([1, 3]), separator=2), "separator 2 does not occur in every example"),
        (lambda: rj.positions.grid(jnp.array([1, 2]), separator=2, order="spiral"), "'forward' or 'snake', got 'spiral'"),
    ],
)
def test_impossible_positions_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
