"""The learned table: a row for each position, and an honest answer where there is none."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from looping import for_each

DIMS = rj.Dims(width=4, num_heads=2, head_dim=2)


def counted_table(rows: int) -> dict[str, jax.Array]:
    """Row p is [p, p + 0.25, p + 0.5, p + 0.75], so that every entry names its own row and column."""
    return {"table": jnp.arange(rows, dtype=jnp.float32)[:, None] + jnp.arange(4, dtype=jnp.float32)[None, :] / 4}


def embed(encoder: rj.Learned, params: dict, x: jax.Array, query: jax.Array) -> jax.Array:
    positions = rj.Positions(query=query)
    tables = encoder.tables(encoder.prepare(params, None, DIMS), positions)
    return encoder.embed(tables, x, positions)


@for_each("query", [[0, 1, 2], [5, 5, 0], [2, 4, 1]])
def test_adds_the_row_of_each_position(query: list[int]) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    rows = np.array(query)[:, None] + np.arange(4)[None, :] / 4
    got = embed(rj.Learned(max_length=6), counted_table(6), jnp.asarray(x), jnp.array(query))
    np.testing.assert_allclose(got, x + rows, rtol=1e-6)


def test_positions_may_differ_between_examples_and_the_dtype_is_kept() -> None:
    x, params = jnp.zeros((2, 3, 4)), counted_table(8)
    shared = embed(rj.Learned(max_length=8), params, x, jnp.array([1, 2, 3]))
    np.testing.assert_array_equal(shared[..., 0], [[1, 2, 3], [1, 2, 3]])
    separate = embed(rj.Learned(max_length=8), params, x, jnp.array([[0, 1, 2], [7, 6, 5]]))
    np.testing.assert_array_equal(separate[..., 0], [[0, 1, 2], [7, 6, 5]])

    got = embed(rj.Learned(max_length=6), counted_table(6), jnp.ones((3, 4), jnp.bfloat16), jnp.array([0, 4, 5]))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(got[:, 2], np.float32), [1.5, 5.5, 6.5])  # exact in bfloat16


def test_initial_rows_are_normal_with_the_given_scale_and_follow_the_key() -> None:
    dims = rj.Dims(width=64, num_heads=2, head_dim=32)
    for scale in (0.02, 0.5, 0.0):
        table = rj.Learned(max_length=200, init_scale=scale).init(jax.random.key(0), dims)["table"]
        assert table.shape == (200, 64)
        assert table.dtype == jnp.float32
        # 12,800 draws: the standard error of the deviation is 0.6 %, that of the mean 0.9 % of the scale
        np.testing.assert_allclose(np.std(table), scale, rtol=0.03)
        np.testing.assert_allclose(np.mean(table), 0, atol=0.04 * scale)
        kurtosis = np.mean(np.asarray(table, np.float64) ** 4)
        np.testing.assert_allclose(kurtosis, 3 * scale**4, rtol=0.15)  # 1.8 for a uniform draw

    encoder = rj.Learned(max_length=3)
    first, again, other = (encoder.init(jax.random.key(seed), DIMS)["table"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.any(np.asarray(first) == np.asarray(other))


# positions that the table does not hold


def test_the_last_row_is_there_and_the_next_position_is_an_error() -> None:
    message = "Learned(max_length=64) has no row for position 64; raise max_length, or evaluate this encoder at lengths up to 64"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        embed(rj.Learned(max_length=64), counted_table(64), jnp.zeros((65, 4)), jnp.arange(65))
    embed(rj.Learned(max_length=64), counted_table(64), jnp.zeros((64, 4)), jnp.arange(64))  # the last row is there

    rj.check_requirements(rj.Learned(max_length=64), DIMS, max_position=63)


@for_each("bad", [8, 9, 1000, -1, -8, -9, -1000, 2**31 - 1, -(2**31)])
def test_a_traced_position_outside_the_table_gives_nan_and_only_there(bad: int) -> None:
    query = jnp.array([3, bad, 7])
    got = jax.jit(lambda q: embed(rj.Learned(max_length=8), counted_table(8), jnp.zeros((3, 4)), q))(query)
    assert np.all(np.isnan(np.asarray(got[1])))
    np.testing.assert_array_equal(got[0], [3, 3.25, 3.5, 3.75])
    np.testing.assert_array_equal(got[2], [7, 7.25, 7.5, 7.75])


@for_each(
    ("dtype", "rows", "query", "expected"),
    [
        # more rows than the dtype holds, so that a "past the end" index written in that dtype would land inside
        ("int8", 300, [2, -1], [2, np.nan]),
        ("int16", 70_000, [2, -1], [2, np.nan]),
        # 2^32 - 1 read as int32 is -1, the last row
        ("uint8", 300, [2, 255], [2, 255]),
        ("uint8", 8, [2, 255], [2, np.nan]),
        ("uint32", 8, [2, 2**32 - 1], [2, np.nan]),
    ],
)
def test_narrow_and_unsigned_positions_are_not_wrapped_into_the_table(dtype: str, rows: int, query: list, expected: list) -> None:
    got = jax.jit(lambda q: embed(rj.Learned(max_length=rows), counted_table(rows), jnp.zeros((2, 4)), q))
    np.testing.assert_array_equal(got(jnp.array(query, dtype))[:, 0], expected)


def embedded(query: jax.Array, traced: bool = False) -> jax.Array:
    def run(query: jax.Array) -> jax.Array:
        return embed(rj.Learned(max_length=8), counted_table(8), jnp.zeros((2, 4)), query)

    return (jax.jit(run) if traced else run)(query)


@for_each(
    ("make", "message"),
    [
        (lambda: embedded(jnp.array([0, -1])), r"has no row for position -1;"),
        (lambda: embedded(jnp.array([0.0, 1.0])), r"needs integer positions, got float32"),
        (lambda: embedded(jnp.array([0.0, 1.0]), traced=True), r"needs integer positions, got float32"),
        (
            lambda: rj.check_requirements(rj.Learned(max_length=64), DIMS, max_position=64),
            r"Learned\(max_length=64\) has no row for position 64; raise max_length to 65",
        ),
        (lambda: rj.Learned(max_length=0), r"max_length must be at least 1, got 0"),
        (lambda: rj.Learned(max_length=-3), r"max_length must be at least 1, got -3"),
        (lambda: rj.Learned(max_length=3, init_scale=-0.1), r"init_scale must not be negative, got -0.1"),
    ],
)
def test_what_it_cannot_do_is_an_error(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# gradients


def test_each_row_receives_the_gradient_of_its_positions() -> None:
    encoder, query = rj.Learned(max_length=5), jnp.array([1, 3, 3])
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(3, 4)), jnp.float32)

    def weighted(params: dict, x: jax.Array) -> jax.Array:
        return jnp.sum(embed(encoder, params, x, query) * weights)

    by_table, by_x = jax.grad(weighted, argnums=(0, 1))(counted_table(5), jnp.zeros((3, 4)))
    expected = np.zeros((5, 4))
    for t, row in enumerate([1, 3, 3]):
        expected[row] += np.asarray(weights)[t]
    np.testing.assert_allclose(by_table["table"], expected, rtol=1e-6)
    np.testing.assert_array_equal(by_x, weights)
