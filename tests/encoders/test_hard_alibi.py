"""Hard-ALiBi: which keys each head sees, by loops and by the weights that attention gives them."""

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

DIMS = rj.Dims(width=12, num_heads=3, head_dim=4)
QUERY = np.array([[0, 3, 7, 40], [2, 5, 900, 130]])  # neither contiguous nor sorted
KEY = np.array([[0, 1, 2, 6, 40, 41], [4, 2, 3, 900, 898, 129]])


def naive(query, key, masked_heads, num_heads=3):
    """arXiv:2402.01032, section 3.1: of the masked heads, head h sees the last h + 1 positions; True elsewhere."""
    out = np.zeros((num_heads, len(query), len(key)), bool)
    for h in range(masked_heads):
        for i, m in enumerate(query):
            for j, n in enumerate(key):
                if not 0 <= m - n < h + 1:
                    out[h, i, j] = True
    return out


@partial(jax.jit, static_argnums=0)
def biased(encoder, positions):
    tables = encoder.tables(encoder.prepare({}, positions.length, DIMS), positions)
    return encoder.bias(tables, None, None, positions)


@partial(jax.jit, static_argnums=0, static_argnames="block_size")
def attended(encoder, q, k, v, positions, block_size=128):
    tables = encoder.prepare({}, positions.length, DIMS)
    return attend(q, k, v, positions, bias=lambda q, k, here: encoder.bias(tables, q, k, here), block_size=block_size)


def weights_of(masked_heads, positions, block_size=128):
    """[H, Tq, Tk]: what attention gives each key, read off one-hot values; queries and keys are all alike."""
    length = len(positions)
    values = np.broadcast_to(np.eye(length, dtype=np.float32)[:, None], (length, 3, length))
    q = jax.random.normal(jax.random.key(0), (length, 3, length))
    encoder = rj.HardALiBi(masked_heads=masked_heads)
    out = attended(encoder, q, q[::-1], values, rj.Positions(query=jnp.asarray(positions)), block_size=block_size)
    return np.moveaxis(np.asarray(out), 1, 0)


@for_each("masked_heads", [0, 1, 2, 3])
def test_a_bias_is_nothing_in_the_window_and_below_every_logit_outside(masked_heads):
    encoder = rj.HardALiBi(masked_heads=masked_heads)
    got = biased(encoder, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    expected = np.stack([naive(q, k, masked_heads) for q, k in zip(QUERY, KEY, strict=True)])
    got = np.broadcast_to(got, expected.shape)
    np.testing.assert_array_equal(got[~expected], 0)
    assert (got[expected] < -1e37).all()
    assert got.dtype == jnp.float32
    mapped = jax.vmap(lambda q, k: biased(encoder, rj.Positions(query=q, key=k)))(jnp.asarray(QUERY), jnp.asarray(KEY))
    np.testing.assert_array_equal(np.broadcast_to(mapped, expected.shape), got)


@settings(deadline=None, max_examples=20)
@given(shift=st.integers(-1000, 2**30))
def test_only_distances_count(shift):
    """Exactly: at 2^30 float32 knows multiples of 64 only, so that a rounded position would be seen."""
    encoder = rj.HardALiBi(masked_heads=2)
    here, there = (biased(encoder, rj.Positions(query=jnp.asarray(QUERY + s), key=jnp.asarray(KEY + s))) for s in (0, shift))
    np.testing.assert_array_equal(here, there)


@for_each("block_size", [3, 128])
@for_each("masked_heads", [0, 2, 3])
def test_a_head_attends_to_its_window_and_to_nothing_else(masked_heads, block_size):
    got = weights_of(masked_heads, np.arange(7), block_size)
    for h in range(3):
        for t in range(7):
            window = range(max(0, t - h), t + 1) if h < masked_heads else range(t + 1)
            for s in range(7):
                if s in window:
                    assert got[h, t, s] > 0
                else:
                    assert got[h, t, s] == 0
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


def test_a_window_counts_positions_not_tokens():
    """Positions 0, 1, 5, 6: the token before 5 is four positions back."""
    got = weights_of(3, np.array([0, 1, 5, 6]))
    np.testing.assert_array_equal(got[1] > 0, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(got[2] > 0, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])
    np.testing.assert_array_equal(got[0], np.eye(4))


@for_each("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_are_finite_and_stay_within_the_window(dtype):
    q, k, v = jax.random.normal(jax.random.key(2), (3, 6, 3, 4)).astype(dtype)
    encoder = rj.HardALiBi(masked_heads=2)
    positions = jnp.array([0, 1, 2, 3, 500, 100_000])

    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(q, k, v):
        return jnp.sum(attended(encoder, q, k, v, rj.Positions(query=positions))[3].astype(jnp.float32) ** 2)

    derivatives = [np.asarray(g, np.float32) for g in gradients(q, k, v)]
    assert all(np.isfinite(g).all() for g in derivatives)
    values = derivatives[2]
    np.testing.assert_array_equal(values.any(-1)[:, 0], [False, False, False, True, False, False])
    np.testing.assert_array_equal(values.any(-1)[:, 1], [False, False, True, True, False, False])
    np.testing.assert_array_equal(values.any(-1)[:, 2], [True, True, True, True, False, False])
    assert derivatives[1][:4, 2].any()  # keys of the head without a window
    np.testing.assert_array_equal(derivatives[1][:2, :2], 0)


def test_a_query_with_no_key_in_its_window_still_sees_no_later_key():
    """The key of the query is not in the cache yet: the result is finite, and an average of what it may see."""
    q, k, v = jax.random.normal(jax.random.key(3), (3, 4, 3, 4))
    here = rj.Positions(query=jnp.array([2]), key=jnp.array([0, 1, 3, 4]))
    got = np.asarray(attended(rj.HardALiBi(masked_heads=1), q[:1], k, v, here))
    np.testing.assert_allclose(got[0, 0], np.asarray(v[:2, 0]).mean(0), rtol=1e-5)


def test_float_positions_have_a_window_too():
    got = biased(rj.HardALiBi(masked_heads=2), rj.Positions(query=jnp.array([2.5]), key=jnp.array([1.25, 1.5, 2.0, 2.5, 3.0])))
    np.testing.assert_array_equal(got[:2, 0] == 0, [[0, 0, 0, 1, 0], [0, 1, 1, 1, 0]])


@for_each(
    ("make", "message"),
    [
        (
            lambda: rj.HardALiBi(masked_heads=-1),
            "masked_heads must not be negative, got -1; it is the number of heads",
        ),
        (lambda: rj.HardALiBi(masked_heads=1.5), "HardALiBi masked_heads must be an int, got 1.5"),
        (
            lambda: rj.check_requirements(rj.HardALiBi(masked_heads=4), DIMS, max_position=9),
            "HardALiBi masked_heads=4 is above the 3 heads of the model; use at most 3",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_all_heads_may_have_a_window():
    rj.check_requirements(rj.HardALiBi(masked_heads=3), DIMS, max_position=9)
    assert rj.HardALiBi(masked_heads=3).retunable == {"masked_heads"}
