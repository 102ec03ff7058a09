"""Weights reordered from one layout to the other give the same attention scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each
from rope_jax.interop import permute_heads

PERM = {8: [0, 2, 4, 6, 1, 3, 5, 7]}


def test_the_order_is_that_of_the_specification():
    """interleaved(x)[..., perm] == half(x[..., perm])."""
    np.testing.assert_array_equal(permute_heads(np.arange(8), head_dim=8, to="half"), PERM[8])
    x = jax.random.normal(jax.random.key(0), (5, 2, 8))
    cos, sin = rj.rotary_tables(rj.rotary_frequencies(8), jnp.arange(5))
    rotated = rj.rotate(x, cos, sin, layout="interleaved")[..., jnp.array(PERM[8])]
    np.testing.assert_allclose(rotated, rj.rotate(permute_heads(x, head_dim=8, to="half"), cos, sin, layout="half"), atol=1e-6)


def test_it_is_how_llamas_weights_came_to_hugging_face():
    """The reordering of Meta's checkpoints in transformers' conversion script, with grouped keys (2 heads of 6, width 5)."""
    weight = np.random.default_rng(0).standard_normal((12, 5))
    expected = weight.reshape(2, 3, 2, 5).transpose(0, 2, 1, 3).reshape(12, 5)
    np.testing.assert_array_equal(permute_heads(weight, head_dim=6, to="half", axis=0), expected)


@settings(deadline=None, max_examples=60)
@given(
    heads=st.integers(1, 4),
    head_dim=st.integers(2, 12),
    data=st.data(),
    to=st.sampled_from(["half", "interleaved"]),
    shape=st.sampled_from(["flax", "flax split", "torch", "torch split", "bias", "bias split"]),
)
def test_there_and_back_is_the_identity(heads, head_dim, data, to, shape):
    start = data.draw(st.integers(0, head_dim - 2))
    rotary_dim = 2 * data.draw(st.integers(1, (head_dim - start) // 2))
    shape, axis = {
        "flax": ((3, heads * head_dim), -1),
        "flax split": ((3, heads, head_dim), 2),
        "torch": ((heads * head_dim, 3), 0),
        "torch split": ((heads, head_dim, 3), -2),
        "bias": ((heads * head_dim,), 0),
        "bias split": ((heads, head_dim), -1),
    }[shape]
    weights = np.arange(np.prod(shape)).reshape(shape)
    options = {"head_dim": head_dim, "rotary_dim": rotary_dim, "start": start, "axis": axis}
    there = permute_heads(weights, to=to, **options)
    back = permute_heads(there, to={"half": "interleaved", "interleaved": "half"}[to], **options)
    np.testing.assert_array_equal(back, weights)
    assert there.shape == weights.shape
    assert sorted(there.ravel()) == sorted(weights.ravel())
    # features that are not rotated stay
    heads_first = np.moveaxis(there - weights, axis, -1).reshape(-1, head_dim)
    assert not heads_first[:, [*range(start), *range(start + rotary_dim, head_dim)]].any()


@for_each(("rotary_dim", "start"), [(8, 0), (4, 0), (4, 4)])
@for_each("to", ["half", "interleaved"])
def test_scores_are_the_same_after_conversion(to, rotary_dim, start):
    """Grouped queries: 4 query heads over 2 key heads; kernel and bias; partial rotation, at either end of a head."""
    width, head_dim, length = 16, 8, 6
    keys = iter(jax.random.split(jax.random.key(1), 5))
    kernels = {n: jax.random.normal(next(keys), (width, n, head_dim)) for n in (4, 2)}
    biases = {n: jax.random.normal(next(keys), (n, head_dim)) for n in (4, 2)}
    x = jax.random.normal(next(keys), (length, width))
    cos, sin = rj.rotary_tables(rj.rotary_frequencies(rotary_dim), jnp.arange(length))

    def scores(kernels, biases, layout):
        def projected(n):
            y = jnp.einsum("tw,whd->thd", x, kernels[n]) + biases[n][None]
            return jnp.concatenate([y[..., :start], rj.rotate(y[..., start:], cos, sin, layout=layout)], axis=-1)

        return jnp.einsum("thgd,shd->hgts", projected(4).reshape(length, 2, 2, head_dim), projected(2))

    options = {"head_dim": head_dim, "rotary_dim": rotary_dim, "start": start, "to": to}
    flat = {n: permute_heads(w.reshape(width, -1), **options).reshape(w.shape) for n, w in kernels.items()}
    split = {n: permute_heads(w, **options) for n, w in kernels.items()}
    torch = {n: permute_heads(w.reshape(width, -1).T, axis=0, **options).T.reshape(w.shape) for n, w in kernels.items()}
    converted = {n: permute_heads(b.reshape(-1), **options).reshape(b.shape) for n, b in biases.items()}
    before = scores(kernels, biases, {"half": "interleaved", "interleaved": "half"}[to])
    for kind in (flat, split, torch):
        np.testing.assert_allclose(scores(kind, converted, to), before, atol=1e-4)
    assert not np.allclose(scores(kernels, biases, to), before, atol=1e-2)  # unconverted, they are not


@for_each("dtype", [np.float32, np.float16, np.int8, jnp.bfloat16, bool])
def test_any_dtype_on_host_and_device_and_compiled(dtype):
    weights = np.arange(24).reshape(2, 12).astype(dtype)
    host = permute_heads(weights, head_dim=6, rotary_dim=4, to="half")
    device = jax.jit(lambda w: permute_heads(w, head_dim=6, rotary_dim=4, to="half"))(jnp.asarray(weights))
    assert type(host) is np.ndarray
    assert host.dtype == device.dtype == weights.dtype
    np.testing.assert_array_equal(host, np.asarray(device))
    order = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    np.testing.assert_array_equal(host, weights[:, order])


@for_each(
    ("options", "message"),
    [
        ({"to": "llama"}, "converts to 'half' .* or 'interleaved' .* got to='llama'"),
        ({"head_dim": 5}, r"needs whole heads along axis -1, but 12 is not a multiple of head_dim=5; .* axis=0"),
        ({"head_dim": 0}, "not a multiple of head_dim=0"),
        ({"axis": 2}, r"axis=2 does not exist in weights of shape \(2, 12\)"),
        ({"rotary_dim": 3}, "even number of features.* got rotary_dim=3 from start=0 of head_dim=6"),
        ({"rotary_dim": 8}, "got rotary_dim=8 from start=0 of head_dim=6"),
        ({"rotary_dim": 4, "start": 3}, "got rotary_dim=4 from start=3 of head_dim=6"),
        ({"head_dim": 3}, "got rotary_dim=3"),
        ({"start": -2}, "from start=-2"),
    ],
)
def test_what_cannot_be_converted_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        permute_heads(np.zeros((2, 12)), **{"head_dim": 6, "to": "half"} | options)
