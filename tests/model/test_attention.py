"""Attention in blocks against a naive float64 one; memory that grows with the length and not with its square."""

import functools
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from examples import ONE_OF_EACH
from looping import for_each
from rope_jax.encoders.positions import Positions
from rope_jax.model.attention import attend, attend_reference, has_fused_kernel
from rope_jax.model.transformer import functional
from rope_jax.study.settings import ModelConfig
from rope_jax.tasks import Batch
from rope_jax.training.train import loss


def naive(q, k, v, query_index, key_index, bias=None):
    """One query, one head at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = np.flatnonzero(key_index <= query_index[t])
            scores = k[seen, h] @ q[t, h] / np.sqrt(q.shape[-1])
            if bias is not None:
                scores = scores + bias[h, t, seen]
            weights = np.exp(scores - scores.max())
            out[t, h] = weights / weights.sum() @ v[seen, h]
    return out


def inputs(seed, *shape):
    return jax.random.normal(jax.random.key(seed), (3, *shape))


def slope_bias(q, k, positions):
    """-slope * distance, from the positions that the hook is given."""
    slopes = jnp.array([0.5, 0.1]).reshape(2, 1, 1)
    distance = jnp.abs(jnp.expand_dims(positions.query, -1) - jnp.expand_dims(positions.keys, -2))
    distance = jnp.expand_dims(distance, -3).astype(jnp.float32)
    return -slopes.reshape((1,) * (distance.ndim - 3) + slopes.shape) * distance


@settings(deadline=None, max_examples=15)
@given(length=st.integers(1, 13), block=st.integers(1, 14))
def test_blocks_equal_the_naive_form(length, block):
    q, k, v = inputs(length, length, 2, 4)
    positions = Positions(query=jnp.arange(length) * 3)
    index = np.arange(length)
    bias = -np.array([0.5, 0.1])[:, None, None] * np.abs(3.0 * index[:, None] - 3.0 * index)
    got = attend(q, k, v, positions, bias=slope_bias, block_size=block)
    np.testing.assert_allclose(got, naive(q, k, v, index, index, bias), rtol=2e-5, atol=2e-6)


def test_the_reference_equals_the_naive_form():
    q, k, v = inputs(0, 9, 2, 4)
    index = np.arange(9)
    bias = -np.array([0.5, 0.1])[:, None, None] * np.abs(3.0 * index[:, None] - 3.0 * index)
    got = attend_reference(q, k, v, Positions(query=jnp.arange(9) * 3), bias=slope_bias)
    np.testing.assert_allclose(got, naive(q, k, v, index, index, bias), rtol=2e-5, atol=2e-6)
    with pytest.raises(ValueError, match=r"q \(9, 2, 4\) has 9 tokens, but query= of shape \(8,\) is for 8"):
        attend_reference(q, k, v, Positions(query=jnp.arange(8)))


def test_blocks_equal_the_reference_with_batch_axes_and_in_the_gradient():
    q, k, v = inputs(0, 3, 10, 2, 4)
    positions = Positions(query=jnp.stack([jnp.arange(10) * n for n in (1, 2, 5)]))

    def total(function, **options):
        def value(q, k, v):
            return jnp.sum(jnp.sin(function(q, k, v, positions, bias=slope_bias, **options)))

        return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))(q, k, v)

    whole = total(attend_reference)
    for block in (3, 5, 16):
        chex.assert_trees_all_close(total(attend, block_size=block), whole, rtol=2e-5, atol=2e-6)


def test_key_heads_serve_several_query_heads():
    q, k, v = inputs(6, 12, 4, 8)
    for heads in (1, 2):
        for attending in (attend_reference, attend, functools.partial(attend, block_size=5)):
            got = attending(q, k[:, :heads], v[:, :heads], Positions(query=jnp.arange(12)))
            several = (np.repeat(x[:, :heads], 4 // heads, axis=1) for x in (k, v))
            np.testing.assert_allclose(got, naive(q, *several, np.arange(12), np.arange(12)), rtol=2e-5, atol=2e-6)
    with pytest.raises(ValueError, match="the 4 heads of q must be a multiple of the 3 heads of k"):
        attend(q, k[:, :3], v[:, :3], Positions(query=jnp.arange(12)))


@for_each("encoder", [rj.ALiBi(), rj.CoPE(max_count=4, init_scale=1.0)])
def test_sections_equal_the_reference_with_documents_too(encoder):
    q, k, v = inputs(10, 2, 290, 2, 8)
    places = Positions(query=jnp.arange(290) % 200, query_segment=jnp.arange(290) // 200)
    dims = rj.encoders.base.Dims(width=16, num_heads=2, head_dim=8)
    tables = encoder.tables(encoder.prepare(encoder.init(jax.random.key(0), dims), None, dims), places)
    bias = functools.partial(encoder.bias, tables)
    got, expected = (jax.jit(functools.partial(f, positions=places, bias=bias))(q, k, v) for f in (attend, attend_reference))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_long_text_is_attended_to_exactly():
    """20,001 positions, no whole number of blocks: a few queries, on both sides of the sections' edges, against float64."""
    length = 20_001
    q, k, v = inputs(9, length, 2, 4)
    index = np.arange(length)
    got = np.asarray(jax.jit(attend)(q, k, v, Positions(query=jnp.arange(length))))
    for t in (0, 63, 64, 5055, 5056, 10_048, 20_000):
        np.testing.assert_allclose(got[t : t + 1], naive(q[t : t + 1], k, v, index[t : t + 1], index), rtol=2e-4, atol=2e-6)


def test_a_cached_query_sees_its_past():
    """One query that is not at row 0, as in decoding with a cache, and a cache whose tail is still empty."""
    q, k, v = inputs(1, 8, 2, 4)
    index = np.arange(8)
    full = naive(q, k, v, index, index)
    got = attend(q[5:6], k, v, Positions(query=jnp.array([5]), key=jnp.arange(8)))  # order: the positions themselves
    np.testing.assert_allclose(got, full[5:6], rtol=2e-5, atol=2e-6)


def test_keys_that_no_query_may_see_take_no_part():
    """Left padding: the padded keys come after everything in order. The padded queries see nothing and stay finite."""
    q, k, v = inputs(2, 6, 2, 4)
    never = np.iinfo(np.int32).max
    positions = Positions(query=jnp.arange(6), key_order=jnp.array([never, never, 2, 3, 4, 5]))
    got = attend(q, k, v, positions)
    short = np.arange(4)
    np.testing.assert_allclose(got[2:], naive(q[2:], k[2:], v[2:], short, short), rtol=2e-5, atol=2e-6)
    gradient = jax.grad(lambda q: jnp.sum(attend(q, k, v, positions)))(q)
    assert np.isfinite(np.asarray(got)).all()
    assert np.isfinite(np.asarray(gradient)).all()


def test_documents_are_kept_apart_with_a_cache_too():
    """Keys of two documents in any order: a query sees the keys of its document."""
    q, k, v = inputs(4, 6, 2, 4)
    document, place = np.array([1, 0, 1, 0, 0, 1]), np.array([1, 2, 0, 0, 1, 2])
    order = np.array([4, 2, 3, 0, 1, 5])
    positions = Positions(
        query=jnp.array([2, 2]),
        key=jnp.asarray(place),
        query_order=jnp.array([2, 5]),
        key_order=jnp.asarray(order),
        query_segment=jnp.array([0, 1]),
        key_segment=jnp.asarray(document),
    )
    got = attend(q[:2], k, v, positions, block_size=1)
    for i, of in enumerate((0, 1)):
        same = document == of
        expected = naive(q[i : i + 1], k[same], v[same], np.array([2]), place[same])
        np.testing.assert_allclose(got[i : i + 1], expected, rtol=2e-5, atol=2e-6)


@for_each(
    ("given", "message"),
    [
        ({"key": jnp.arange(4), "query_segment": jnp.zeros(4, int)}, "give query_segment, and with key= also key_segment"),
        ({"key_segment": jnp.zeros(4, int)}, "segments must be known for queries and keys, but only one of them has segments"),
        (
            {"query_segment": jnp.zeros(1, int)},
            r"query_segment= of shape \(1,\) is for 1; give query_segment= one entry",
        ),
        (
            {"query_segment": jnp.zeros(4, int), "key_segment": jnp.zeros(3, int)},
            r"key_segment= of shape \(3,\) is for 3; give key_segment= one entry",
        ),
    ],
)
def test_segments_of_some_tokens_alone_are_refused(given, message):
    q, k, v = inputs(5, 4, 2, 4)
    for block in (2, 4):
        with pytest.raises(ValueError, match=message):
            attend(q, k, v, Positions(query=jnp.arange(4), **given), block_size=block)


def test_bfloat16_inputs_have_float32_scores():
    """With 300 equal keys, weights of 1/300 and scores near 40, bfloat16 scores would be off by up to 0.1."""
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(3, 300, 1, 8) * 4)
    got = attend(q, k, v, Positions(query=jnp.arange(300)), block_size=64)
    assert got.dtype == jnp.bfloat16
    index = np.arange(300)
    expected = naive(q, k, v, index, index)
    assert np.abs(np.asarray(got, np.float64) - expected).max() < 2e-2 * np.abs(expected).max()


@pytest.mark.skipif(not has_fused_kernel(), reason="needs a GPU with cuDNN's fused attention; run with `make accelerator`")
def test_the_fused_kernel_is_the_reference():
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(8, 2, 3, 82, 4, 8))
    usual = Positions(query=jnp.arange(82))

    def both(function):
        def total(q, k, v):
            return jnp.sum(jnp.sin(function(q, k, v, usual).astype(jnp.float32)))

        return jax.jit(function)(q, k, v, usual), *jax.jit(jax.grad(total, (0, 1, 2)))(q, k, v)

    assert "cudnn" in jax.jit(attend).lower(q, k, v, usual).as_text()
    for got, expected in zip(both(attend), both(attend_reference), strict=True):
        np.testing.assert_allclose(got.astype(jnp.float32), expected.astype(jnp.float32), atol=0.05)


COMPOSED = rj.Compose(rj.RoPE(), rj.ALiBi(), rj.SlidingWindow(size=64))


def test_on_a_gpu_the_fused_kernel_is_used_where_it_is_the_same_function(fused_calls):
    q, k, v = (2 * x.astype(jnp.bfloat16) for x in inputs(8, 2, 3, 9, 2, 8))
    usual = Positions(query=jnp.arange(9) + 5, length=jnp.full((2, 3), 9))
    got = jax.jit(lambda q, k, v: attend(q, k, v, usual))(q, k, v)
    assert fused_calls == ["cudnn"]
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), attend_reference(q, k, v, usual).astype(jnp.float32), atol=0.03)
    fused_calls.clear()
    # what it does not compute: biases, other orders, documents, float32, heads of another size
    attend(q, k, v, usual, bias=slope_bias)
    attend(q, k, v, replace(usual, key=jnp.arange(9)))
    attend(q, k, v, replace(usual, query_order=jnp.arange(9) + 1))
    attend(q, k, v, replace(usual, query_segment=jnp.zeros(9, jnp.int32)))
    attend(*(x.astype(jnp.float32) for x in (q, k, v)), usual)
    attend(*(x[..., :5] for x in (q, k, v)), usual)
    assert not fused_calls


ALONE = [encoder for encoder in ONE_OF_EACH if isinstance(encoder, rj.Bias | rj.CoPE)]


def require_linear_memory(encoder, num_layers, backward):
    """Sizes of the quickstart: the temporary memory at 16,384 positions is at most 2.2 times that at 8,192."""
    init, apply = functional(ModelConfig(num_layers=num_layers, width=64, num_heads=4), 20, encoder)
    params = jax.eval_shape(init, jax.random.key(0))

    def temporary(length):
        def array(dtype, *shape):
            return jax.ShapeDtypeStruct(shape, dtype)

        tokens = array(jnp.int32, 1, length)
        mask = array(jnp.bool_, 1, length)
        batch = Batch(tokens, tokens, mask, mask, array(jnp.int32, 1))
        function = jax.grad(loss) if backward else loss
        positions = Positions(query=jnp.arange(length), length=jnp.array([length]))
        compiled = jax.jit(lambda params, batch: function(params, batch, positions, apply=apply)).lower(params, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(16_384) <= 2.2 * temporary(8192)


@for_each(("encoder", "num_layers", "backward"), [(COMPOSED, 2, True), (rj.Fire(), 1, False)])
def test_memory_grows_with_the_length(encoder, num_layers, backward):
    require_linear_memory(encoder, num_layers, backward)


@pytest.mark.slow
@for_each(
    ("encoder", "num_layers", "backward"),
    [
        (rj.Compose(rj.Sinusoidal(), rj.Learned(max_length=16_384), rj.XPos()), 1, True),
        (rj.RoPE(), 1, False),
        *((encoder, 1, True) for encoder in (rj.NoPE(), *ALONE)),
    ],
)
def test_memory_grows_with_the_length_for_every_encoder(encoder, num_layers, backward):
    require_linear_memory(encoder, num_layers, backward)
