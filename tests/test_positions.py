"""Positions are data: what `contiguous` makes, for one offset and for one an example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rope_jax as rj


@settings(deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(length=st.integers(0, 9), offset=st.integers(-(2**30), 2**30))
def test_contiguous_counts_from_its_offset(length: int, offset: int) -> None:
    got = rj.positions.contiguous(length, offset=offset)
    assert got.dtype == jnp.int32
    assert got.tolist() == list(range(offset, offset + length))


def test_contiguous_begins_at_zero() -> None:
    assert rj.positions.contiguous(5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ([0, 7], [[0, 1, 2], [7, 8, 9]]),
        ([[0, 7], [-2, 100]], [[[0, 1, 2], [7, 8, 9]], [[-2, -1, 0], [100, 101, 102]]]),
        ([5], [[5, 6, 7]]),
    ],
)
def test_an_array_of_offsets_gives_each_example_its_own(offset: list, expected: list) -> None:
    assert rj.positions.contiguous(3, offset=jnp.array(offset)).tolist() == expected


def test_the_offset_may_be_traced() -> None:
    assert jax.jit(lambda o: rj.positions.contiguous(4, offset=o))(11).tolist() == [11, 12, 13, 14]
    offsets = jnp.array([3, -1, 1000])
    rows = jax.jit(jax.vmap(lambda o: rj.positions.contiguous(2, offset=o)))(offsets)
    np.testing.assert_array_equal(rows, rj.positions.contiguous(2, offset=offsets))
    assert rows.tolist() == [[3, 4], [-1, 0], [1000, 1001]]


def test_small_offset_dtypes_do_not_wrap() -> None:
    # a cache index is often kept as int8 or uint8; the positions after it must not overflow with it
    assert rj.positions.contiguous(3, offset=jnp.array(127, jnp.int8)).tolist() == [127, 128, 129]
    assert rj.positions.contiguous(2, offset=jnp.array([255], jnp.uint8)).tolist() == [[255, 256]]


def test_a_negative_length_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"length must not be negative, got -1"):
        rj.positions.contiguous(-1)
