"""Attention temperature against a softmax of scaled scores in float64."""

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

DIMS = rj.Dims(width=8, num_heads=2, head_dim=4)
LENGTH = 7


def contents(*leading, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(0), (3, *leading, LENGTH, 2, 4)).astype(dtype)


@partial(jax.jit, static_argnums=0)
def attended(encoder, q, k, v, positions):
    tables = encoder.tables(encoder.prepare({}, positions.length, DIMS), positions)
    q, k = encoder.rotate(tables, q, k)
    return attend(q, k, v, positions, bias=lambda *a: encoder.bias(tables, *a), block_size=4)


@partial(jax.jit, static_argnums=0)
def rotated(encoder, q, k, positions):
    return encoder.rotate(encoder.tables(encoder.prepare({}, positions.length, DIMS), positions), q, k)


def naive(q, k, v, scale, bias=0.0):
    """softmax(scale_q q . k / sqrt(D) + bias) v over the keys up to the query; scale is [T]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = np.asarray(scale)[:, None] * np.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1]) + bias
    weights = np.where(np.tri(len(q), dtype=bool), np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)


def log_n(n, original):
    return max(1.0, math.log(n) / math.log(original)) if n > 0 else 1.0


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 10**7), original=st.integers(2, 10**6))
def test_log_n_is_its_formula(n, original):
    got = rj.log_n_scale(n, original_length=original)
    assert float(got) == pytest.approx(log_n(n, original), rel=1e-6)
    assert got.dtype == jnp.float32
    if n <= original:
        assert float(got) == pytest.approx(1.0, abs=1e-6)


def test_log_n_of_arrays_traced_and_not():
    n = np.array([[1, 8, 64], [63, 65, 4096]])
    expected = [[log_n(x, 8) for x in row] for row in n]
    np.testing.assert_allclose(rj.log_n_scale(jnp.asarray(n), original_length=8), expected, rtol=1e-6)
    traced = jax.jit(partial(rj.log_n_scale, original_length=8))
    np.testing.assert_allclose(traced(n), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(traced)(n), expected, rtol=1e-6)
    slope = jax.grad(traced)(64.0)
    assert float(slope) == pytest.approx(1 / (64 * math.log(8)), rel=1e-5)
    assert float(jax.grad(traced)(5.0)) == 0


@for_each("encoder", [rj.LogN(original_length=3), rj.LogN(original_length=3, by="length"), rj.LogitScale(scale=2.5)])
def test_only_queries_are_scaled_and_dtypes_kept(encoder):
    positions = np.array([0, 2, 3, 9, 26, 80, 81])
    q, k, _ = contents(dtype=jnp.bfloat16)
    got_q, got_k = rotated(encoder, q, k, rj.Positions(query=jnp.asarray(positions), length=27))
    scale = {"LogitScale": [2.5] * 7}.get(
        type(encoder).__name__, [log_n(27 if encoder == rj.LogN(original_length=3, by="length") else m + 1, 3) for m in positions]
    )
    assert got_q.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got_k, k)
    # one rounding at the end: within half a step of bfloat16
    exact = np.asarray(q, np.float64) * np.asarray(scale)[:, None, None]
    np.testing.assert_allclose(np.asarray(got_q, np.float64), exact, rtol=2**-8)
    wide, _ = rotated(
        encoder, q.astype(jnp.float32), k.astype(jnp.float32), rj.Positions(query=jnp.asarray(positions), length=27)
    )
    np.testing.assert_array_equal(got_q, wide.astype(jnp.bfloat16))


def test_by_position_it_scales_a_querys_logits():
    """Each example has different positions, not contiguous; below the trained length nothing happens."""
    encoder = rj.LogN(original_length=8)
    q, k, v = contents(2)
    positions = np.array([[0, 1, 6, 7, 8, 63, 5000], [100, 101, 102, 110, 111, 200, 4095]])
    got = attended(encoder, q, k, v, rj.Positions(query=jnp.asarray(positions)))
    for row in range(2):
        expected = naive(q[row], k[row], v[row], [log_n(m + 1, 8) for m in positions[row]])
        np.testing.assert_allclose(got[row], expected, rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(lambda q, k, v, m: attended(encoder, q, k, v, rj.Positions(query=m)))(q, k, v, jnp.asarray(positions))
    np.testing.assert_allclose(mapped, got, rtol=1e-5, atol=1e-6)
    near = rj.Positions(query=jnp.arange(LENGTH))
    np.testing.assert_array_equal(rotated(encoder, q[0], k[0], near)[0], q[0])


def test_by_length_it_scales_all_logits_of_an_example():
    encoder = rj.LogN(original_length=8, by="length")
    q, k, v = contents(2)
    lengths = jnp.array([5, 512])
    got = attended(encoder, q, k, v, rj.Positions(query=jnp.arange(LENGTH), length=lengths))  # traced, one an example
    for row, scale in enumerate((1.0, 3.0)):
        np.testing.assert_allclose(got[row], naive(q[row], k[row], v[row], [scale] * LENGTH), rtol=1e-4, atol=1e-5)
        static = encoder.prepare({}, int(lengths[row]), DIMS)  # a Python int
        assert float(static) == pytest.approx(scale, rel=1e-6)
    mapped = jax.vmap(lambda q, k, v, n: attended(encoder, q, k, v, rj.Positions(query=jnp.arange(LENGTH), length=n)))
    np.testing.assert_allclose(mapped(q, k, v, lengths), got, rtol=1e-5, atol=1e-6)
    unknown = attended(encoder, q[0], k[0], v[0], rj.Positions(query=jnp.arange(LENGTH)))
    np.testing.assert_allclose(unknown, naive(q[0], k[0], v[0], [1.0] * LENGTH), rtol=1e-4, atol=1e-5)


def test_padding_is_not_scaled_and_packing_counts_within_a_document():
    positions = rj.Positions(query=jnp.array([-9, -2, -1, 0, 1, 2, 3]))
    q, k, _ = contents()
    np.testing.assert_array_equal(rotated(rj.LogN(original_length=8), q, k, positions)[0], q)

    encoder = rj.LogN(original_length=2)
    q, k, _ = contents()
    packed = rotated(encoder, q, k, rj.Positions(query=jnp.array([0, 1, 2, 3, 0, 1, 2])))[0]
    alone = rotated(encoder, q[4:], k[4:], rj.Positions(query=jnp.arange(3)))[0]
    np.testing.assert_allclose(packed[4:], alone, rtol=1e-6)
    np.testing.assert_allclose(packed[2], np.asarray(q[2]) * math.log(3) / math.log(2), rtol=1e-6)


def test_a_constant_scales_the_logits_and_no_bias():
    q, k, v = contents()
    encoder = rj.Compose(rj.ALiBi(), rj.LogitScale(scale=1.7))
    bias = np.asarray(rj.alibi_bias(jnp.arange(LENGTH), jnp.arange(LENGTH), 2), np.float64)
    got = attended(encoder, q, k, v, rj.Positions(query=jnp.arange(LENGTH)))
    np.testing.assert_allclose(got, naive(q, k, v, [1.7] * LENGTH, bias), rtol=1e-4, atol=1e-5)


def test_deepseeks_softmax_factor_is_apart_from_the_attention_scale():
    """DeepSeek-V3: factor 40, mscale 1, mscale_all_dim 1; cos and sin keep their size and the logits grow."""
    yarn = rj.YaRN(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
    m = 0.1 * math.log(40) + 1
    assert yarn.softmax_scale == pytest.approx(m**2, rel=1e-12)
    assert yarn.softmax_scale == pytest.approx(1.8739, abs=2e-4)
    assert float(rj.rotary_frequencies(4, scaling=yarn).attention_scale) == 1
    q, k, v = contents()
    positions = rj.Positions(query=3 * jnp.arange(LENGTH))
    plain, scaled = rj.RoPE(scaling=yarn), rj.Compose(rj.RoPE(scaling=yarn), rj.LogitScale(scale=yarn.softmax_scale))
    got = attended(scaled, q, k, v, positions)
    np.testing.assert_allclose(got, naive(*rotated(plain, q, k, positions), v, [m**2] * LENGTH), rtol=1e-4, atol=1e-5)


@for_each(
    ("options", "expected"),
    [
        ({}, 1.0),  # without mscale_all_dim there is no such factor
        ({"mscale": 0.7}, 1.0),
        ({"mscale_all_dim": 0.7}, (0.07 * math.log(40) + 1) ** 2),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.05 * math.log(40) + 1) ** 2),
        ({"mscale_all_dim": 1.0, "factor": 1.0}, 1.0),
        ({"mscale_all_dim": 1.0, "attention_factor": 3.0}, (0.1 * math.log(40) + 1) ** 2),
    ],
)
def test_softmax_scale_is_m_of_mscale_all_dim_squared(options, expected):
    yarn = rj.YaRN(**{"factor": 40.0, "original_length": 4096} | options)
    assert yarn.softmax_scale == pytest.approx(expected, rel=1e-12)


def test_gradients_are_finite_at_every_position():
    q, k, v = contents()

    @jax.jit
    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(q, k, positions):
        return jnp.sum(attended(rj.LogN(original_length=8), q, k, v, rj.Positions(query=positions)) ** 2)

    for positions in ([0.0] * 7, [-1.0, -1.0, 0.0, 1.0, 7.0, 8.0, 9.0], [0.0, 1.0, 2.0, 3.0, 1e6, 1e7, 1e8]):
        derivatives = gradients(q, k, jnp.array(positions))
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in derivatives)
        assert np.asarray(derivatives[0]).any()


def test_what_reads_the_length_says_so():
    assert rj.LogN(original_length=8, by="length").requirements.length
    assert not rj.LogN(original_length=8).requirements.length
    assert rj.LogN(original_length=8).requirements.original_lengths == {8}
    assert rj.LogN(original_length=8).retunable == {"original_length"}
    assert rj.LogitScale(scale=2.0).retunable == {"scale"}
    assert rj.LogitScale(scale=2).scale == 2.0


@for_each(
    ("make", "message"),
    [
        (lambda: rj.log_n_scale(4, original_length=1), "LogN original_length must be at least 2, got 1; the logarithm of 1 is 0"),
        (lambda: rj.LogN(original_length=1), "LogN original_length must be at least 2, got 1; the logarithm of 1 is 0"),
        (lambda: rj.LogN(original_length=0), "LogN original_length must be at least 2, got 0"),
        (lambda: rj.LogN(original_length=8, by="key"), "LogN by must be 'position' or 'length', got 'key'"),
        (lambda: rj.LogitScale(scale=0.0), "LogitScale scale must be positive, got 0.0; 1.0 changes nothing"),
        (lambda: rj.LogitScale(scale=math.inf), "LogitScale scale must be finite, got inf"),
        (
            lambda: rotated(rj.LogN(original_length=8), *contents()[:2], rj.Positions(query=jnp.zeros((2, LENGTH)), axes=2)),
            "LogN(by='position') reads one axis, but the positions have 2",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
