"""Layers and SlidingWindow: the hooks of each layer, against a forward pass written out layer by layer."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from looping import for_each
from plain_model import forward
from rope_jax.encoders.layers import as_layers
from rope_jax.model.attention import attend
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.config import Method, Variant
from rope_jax.study.settings import ModelConfig

CONFIG = ModelConfig(num_layers=4, width=16, num_heads=2, mlp_factor=1)
TOKENS = jnp.array([1, 5, 3, 4, 4, 2, 6])
AT = rj.Positions(query=jnp.arange(7), length=7)


def model(encoder, config=CONFIG):
    init, apply = functional(config, 8, encoder)
    return init(jax.random.key(0)), jax.jit(apply)


@for_each(
    "encoders",
    [
        (rj.RoPE(),),
        (rj.RoPE(), rj.NoPE()),
        (rj.RoPE(), rj.RoPE(), rj.RoPE(), rj.NoPE()),
        (rj.Compose(rj.RoPE(), rj.SlidingWindow(size=2)), rj.ALiBi(slope_scale=4.0)),
        (rj.NoPE(), rj.SlidingWindow(size=1), rj.ALiBi(), rj.RoPE(scaling=rj.DynamicNTK(original_length=4))),
    ],
)
def test_layer_by_layer(encoders):
    params, apply = model(rj.Layers(*encoders))
    got = apply(params, TOKENS, AT)
    np.testing.assert_allclose(
        got, forward(params, [encoders[i % len(encoders)] for i in range(4)], CONFIG, TOKENS, AT), rtol=1e-4, atol=1e-5
    )


def test_layers_of_one_encoder_are_that_encoder():
    """All three hooks, with parameters; equal encoders of a pattern have separate parameters."""
    for encoder in (rj.Learned(max_length=16), rj.RoPE(learn_base=True), rj.Kerple()):
        params, apply = model(encoder)
        _, of_one = model(rj.Layers(encoder))
        _, of_two = model(rj.Layers(encoder, encoder))
        embedding = params["encoding"]
        plain = apply(params, TOKENS, AT)
        chex.assert_trees_all_close(of_one(params, TOKENS, AT), plain, atol=1e-6)
        if not isinstance(encoder, rj.Learned):
            chex.assert_trees_all_close(
                of_two(params | {"encoding": {"encoder0": embedding["encoder0"], "encoder1": embedding["encoder0"]}}, TOKENS, AT),
                plain,
                atol=1e-6,
            )
    assert set(encoding_params(model(rj.Layers(rj.Kerple(), rj.NoPE(), rj.Kerple(), rj.NoPE()))[0])) == {"encoder0", "encoder2"}


def test_what_is_added_to_the_input_is_added_once_where_its_first_layer_begins():
    """With blocks that do nothing, the input is all there is: the sum of what was added, each once."""
    params, apply = model(rj.Sinusoidal())
    idle = jax.tree.map(lambda x: x, params)
    for block in idle["blocks"].values():
        block["attention"]["out"]["kernel"] *= 0
        block["mlp"]["down"]["kernel"] *= 0
    once = apply(idle, TOKENS, AT)
    for pattern in (rj.Layers(rj.Sinusoidal(), rj.NoPE()), rj.Layers(rj.NoPE(), rj.Sinusoidal())):
        chex.assert_trees_all_close(model(pattern)[1](idle, TOKENS, AT), once, atol=1e-6)
    # the first layer of (NoPE, Sinusoidal) has not seen it yet: with that layer alone at work, the two patterns differ
    working = idle | {"blocks": idle["blocks"] | {0: params["blocks"][0]}}
    early, late = (
        model(pattern)[1](working, TOKENS, AT)
        for pattern in (rj.Layers(rj.Sinusoidal(), rj.NoPE()), rj.Layers(rj.NoPE(), rj.Sinusoidal()))
    )
    assert float(jnp.max(jnp.abs(early - late))) > 1e-4


@for_each(
    ("encoder", "reach"),
    [
        (rj.SlidingWindow(size=2), 2),  # one token further back for every layer
        (rj.SlidingWindow(size=1), 0),
        (rj.Layers(rj.SlidingWindow(size=3), rj.SlidingWindow(size=1)), 2),
        (rj.Layers(rj.SlidingWindow(size=2), rj.NoPE()), 6),
        (rj.Compose(rj.SlidingWindow(size=2), rj.RoPE(), rj.SlidingWindow(size=4)), 2),  # the narrower one decides
    ],
)
def test_a_window_bounds_what_a_token_depends_on(encoder, reach):
    params, _ = model(encoder, ModelConfig(num_layers=2, width=16, num_heads=2, mlp_factor=1))
    _, apply = functional(ModelConfig(num_layers=2, width=16, num_heads=2, mlp_factor=1), 8, encoder)

    @jax.jit
    @jax.grad
    def gradient(embedding):
        return jnp.sum(apply(params | {"embedding": embedding}, jnp.arange(7), AT)[6] ** 2)

    derivatives = np.asarray(gradient(jnp.concatenate([params["embedding"]])[:7]))
    assert np.flatnonzero(derivatives.any(axis=1)).tolist() == list(range(6 - reach, 7))


def test_a_window_counts_tokens_whatever_their_positions():
    """Sparse positions, left padding and a cache in any order: the last tokens by order."""
    window = rj.SlidingWindow(size=2)
    q = k = jnp.ones((4, 1, 8))
    sparse = window.bias({}, q, k, rj.Positions(query=jnp.array([0, 50, 90, 1000])))
    assert (sparse[0] == 0).tolist() == [[True] * 4, [True] * 4, [False, True, True, True], [False, False, True, True]]
    cached = rj.Positions(query=jnp.array([3]), key=jnp.array([2, 0, 3, 1]))
    assert (window.bias({}, q[:1], k, cached)[0] == 0).tolist() == [[True, False, True, False]]
    for apart in (jnp.array([90, 0, 1000, 50]), jnp.array([0.9, 0.0, 1.0, 0.5])):  # the same, of sparse and of real positions
        sparse = rj.Positions(query=apart[2:3], key=apart, query_order=jnp.array([3]), key_order=cached.key)
        assert (window.bias({}, q[:1], k, sparse)[0] == 0).tolist() == [[True, False, True, False]]


def test_blocks_do_not_change_the_window():
    q, k, v = jax.random.normal(jax.random.key(0), (3, 9, 2, 8))
    positions, window = rj.Positions(query=jnp.arange(9)), rj.SlidingWindow(size=3)
    hook = lambda q, k, here: window.bias({}, q, k, here)  # noqa: E731
    whole, blocks = (attend(q, k, v, positions, bias=hook, block_size=size) for size in (9, 2))
    np.testing.assert_allclose(blocks, whole, atol=1e-6)
    for t in range(9):
        seen = slice(max(0, t - 2), t + 1)
        weights = jax.nn.softmax(jnp.einsum("hd,shd->hs", q[t], k[seen]) / math.sqrt(8), axis=-1)
        np.testing.assert_allclose(whole[t], jnp.einsum("hs,shd->hd", weights, v[seen]), atol=1e-5)


def test_variants_encoder_by_encoder():
    trained = rj.Layers(rj.RoPE(), rj.NoPE())
    scaled = rj.Layers(rj.RoPE(scaling=rj.NTK(factor=3.0)), rj.NoPE())
    method = Method(encoder=trained, variants=(Variant(name="NTK 3", encoder=scaled),))
    params, apply = model(trained)
    prepared = as_layers(method.variants[0].encoder).prepare({}, 7, CONFIG.dims)
    chex.assert_trees_all_close(apply(params, TOKENS, AT, prepared), model(scaled)[1](params, TOKENS, AT), atol=1e-6)
    for other in (rj.Layers(rj.NoPE(), rj.RoPE()), rj.Compose(rj.RoPE(), rj.NoPE()), rj.Layers(rj.RoPE())):
        with pytest.raises(ValueError, match="of the trained Layers"):
            Method(encoder=trained, variants=(Variant(name="v", encoder=other),))


@for_each(
    ("make", "message"),
    [
        (lambda: rj.Layers(), r"Layers needs at least one encoder, such as Layers\(RoPE\(\), ALiBi\(\)\)"),
        (lambda: rj.Layers(rj.RoPE), r"got <class .*; call it: RoPE\(...\)"),
        (
            lambda: rj.Compose(rj.Layers(rj.RoPE(), rj.NoPE()), rj.ALiBi()),
            r"Compose takes encoders, .*; put Layers outside: Layers\(Compose\(RoPE\(\), ALiBi\(\)\), NoPE\(\)\)",
        ),
        (lambda: rj.Layers(rj.Layers(rj.RoPE()), rj.NoPE()), r"Layers takes encoders, .*put Layers outside"),
        (lambda: rj.Compose(rj.Layers(rj.RoPE()), rj.ALiBi()), r"Compose takes encoders, .*put Layers outside"),
        (lambda: functional(CONFIG, 8, rj.Layers(rj.RoPE(), rj.NoPE(), rj.NoPE())), "num_layers 4 is not a multiple of the 3"),
        (
            lambda: rj.SlidingWindow(size=2).bias({}, None, None, rj.Positions(query=jnp.ones(1), key=jnp.arange(3) / 2)),
            "the order is by default the positions, which are real numbers here; give query_order and key_order",
        ),
        (lambda: rj.SlidingWindow(size=0), "SlidingWindow size must be at least 1, got 0"),
    ],
)
def test_impossible_patterns_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
