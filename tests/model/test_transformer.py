"""The Transformer: causal, independent of padding, with all three hooks, at log(vocabulary) before training."""

from dataclasses import dataclass, replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from examples import ONE_OF_EACH
from looping import for_each
from rope_jax.encoders.base import Encoder
from rope_jax.encoders.layers import as_layers
from rope_jax.encoders.positions import Positions
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.settings import ModelConfig
from rope_jax.tasks import Copy
from rope_jax.training.train import loss

CONFIG = ModelConfig(num_layers=2, width=32, num_heads=4)
LEARNED_ROTATIONS = [
    rj.RoPE(layout="interleaved", rotary_fraction=0.5, head_fraction=0.5, learn_base=True),
    rj.RoPE(scaling=rj.DynamicNTK(original_length=6), learn_angles=True),
]
ENCODERS = [*ONE_OF_EACH, *LEARNED_ROTATIONS]


def model(encoder, config=CONFIG, vocabulary=10):
    """Parameters, and the compiled model."""
    init, apply = functional(config, vocabulary, encoder)
    return init(jax.random.key(0)), jax.jit(apply)


@dataclass(frozen=True, kw_only=True)
class Probe(Encoder):
    """Adds what `prepared` holds to the embeddings, so that gradients tell what a logit depends on."""

    def embed(self, tables, x, positions):
        return x + tables


@pytest.mark.slow
@for_each("length", [9, 140])  # one block of queries, and more than one
def test_causality_by_gradient(length):
    init, apply = functional(CONFIG, 10, Probe())
    params = init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (length,), 0, 10)
    positions = Positions(query=jnp.arange(length))
    for t in (0, length // 2, length - 1):
        gradient = jax.grad(lambda probe, t=t: jnp.sum(jnp.sin(apply(params, tokens, positions, (probe,))[t])))(
            jnp.zeros((length, 32))
        )
        influence = np.abs(np.asarray(gradient)).sum(axis=-1)
        assert (influence[: t + 1] > 0).all()
        assert (influence[t + 1 :] == 0).all()


@pytest.mark.slow
@for_each("encoder", ENCODERS)
def test_padded_equals_unpadded(encoder):
    params, apply = model(encoder)
    lengths = (7, 12, 3)
    tokens = jax.random.randint(jax.random.key(1), (3, 20), 0, 10)
    padded = apply(params, tokens, Positions(query=jnp.arange(20), length=jnp.array(lengths)))
    for row, length in enumerate(lengths):
        alone = apply(params, tokens[row, :length], Positions(query=jnp.arange(length), length=jnp.asarray(length)))
        np.testing.assert_allclose(padded[row, :length], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@for_each("encoder", ENCODERS)
def test_an_untrained_model_gives_log_vocabulary(encoder):
    task = Copy(alphabet=16)
    params, apply = model(encoder, vocabulary=task.vocabulary)
    batch = task.sample(jax.random.key(0), jnp.full(32, 12), max_length=12)
    positions = Positions(query=jnp.arange(batch.tokens.shape[1]), length=batch.lengths)
    value = loss(params, batch, positions, apply=apply)
    assert abs(float(value) - np.log(task.vocabulary)) < 0.1


@for_each(
    "encoder",
    [rj.Compose(rj.Sinusoidal(), rj.Fire()), rj.Layers(rj.Sinusoidal(), rj.Compose(rj.Learned(max_length=9), rj.RoPE()))],
)
@for_each("num_layers", [2, 6])
def test_layers_in_a_loop_are_the_same_layers(encoder, num_layers):
    config = replace(CONFIG, num_layers=num_layers)
    init, apply = functional(config, 10, encoder)
    _, scanned = functional(config, 10, encoder, implementation=Implementation(scan_layers=True))
    params, period = init(jax.random.key(0)), len(as_layers(encoder).encoders)
    tokens, positions = jax.random.randint(jax.random.key(1), (2, 8), 0, 10), Positions(query=jnp.arange(8))
    np.testing.assert_allclose(scanned(params, tokens, positions), apply(params, tokens, positions), rtol=1e-4, atol=1e-5)
    loops = [eqn for eqn in jax.make_jaxpr(scanned)(params, tokens, positions).eqns if eqn.primitive.name == "scan"]
    assert [eqn.params["length"] for eqn in loops] == ([num_layers // period - (period > 1)] if num_layers > period else [])


@pytest.mark.slow
@for_each("encoder", [rj.NoPE(), rj.Sinusoidal(), rj.Learned(max_length=64), rj.Kerple(), rj.RoPE(), *LEARNED_ROTATIONS])
def test_vmap_over_seeds_equals_a_loop(encoder):
    """One of each hook; over the parameters of every encoder: test_every_encoder."""
    init, apply = map(jax.jit, functional(CONFIG, 10, encoder))
    keys = jax.random.split(jax.random.key(0), 3)
    tokens = jax.random.randint(jax.random.key(1), (2, 8), 0, 10)
    positions = Positions(query=jnp.arange(8), length=jnp.array([8, 8]))
    params = jax.vmap(init)(keys)
    together = jax.vmap(lambda params: apply(params, tokens, positions))(params)
    for i, key in enumerate(keys):
        alone = init(key)
        chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], params), alone, rtol=1e-6)
        np.testing.assert_allclose(together[i], apply(alone, tokens, positions), rtol=1e-4, atol=1e-5)


def test_an_added_encoding_does_not_drown_the_token():
    """Token features have size 1; sines and cosines 0.71."""
    init, _ = functional(CONFIG, 500, Probe())
    params = init(jax.random.key(0))
    assert abs(float(jnp.std(params["embedding"])) * np.sqrt(CONFIG.width) - 1) < 0.05


def test_a_prepared_variant_is_the_encoder_with_that_scaling():
    trained, scaled = rj.RoPE(), rj.RoPE(scaling=rj.NTK(factor=3.0))
    init, apply = functional(CONFIG, 10, trained)
    _, apply_scaled = functional(CONFIG, 10, scaled)
    params = init(jax.random.key(0))
    tokens, positions = jax.random.randint(jax.random.key(1), (2, 8), 0, 10), Positions(query=jnp.arange(8))
    variant = apply(params, tokens, positions, as_layers(scaled).prepare(encoding_params(params), None, CONFIG.dims))
    np.testing.assert_allclose(variant, apply_scaled(params, tokens, positions), rtol=1e-5, atol=1e-6)
    assert np.abs(variant - apply(params, tokens, positions)).max() > 1e-3


def test_only_the_encoders_positions_tell_order():
    """Without a position encoding, and no mask to speak of, the last query sees a set; with RoPE it sees an order."""
    tokens = jnp.array([3, 1, 4, 1, 5])
    swapped = jnp.array([4, 1, 3, 1, 5])
    positions = Positions(query=jnp.arange(5))
    one_layer = ModelConfig(num_layers=1, width=32, num_heads=4)
    for encoder, differ in ((rj.NoPE(), False), (rj.RoPE(), True), (rj.Sinusoidal(), True), (rj.Learned(max_length=8), True)):
        init, apply = functional(one_layer, 10, encoder)
        params = init(jax.random.key(0))
        gap = np.abs(apply(params, tokens, positions)[-1] - apply(params, swapped, positions)[-1]).max()
        assert (gap > 1e-4) == differ


def test_bfloat16_computes_in_bfloat16_and_answers_in_float32():
    tokens, positions = jax.random.randint(jax.random.key(1), (2, 8), 0, 10), Positions(query=jnp.arange(8))
    outputs = {}
    for dtype in ("float32", "bfloat16"):
        init, apply = functional(ModelConfig(num_layers=2, width=32, num_heads=4, compute_dtype=dtype), 10, rj.RoPE())
        params = init(jax.random.key(0))
        outputs[dtype] = apply(params, tokens, positions)
        assert outputs[dtype].dtype == jnp.float32
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    gap = np.abs(outputs["float32"] - outputs["bfloat16"]).max() / np.abs(outputs["float32"]).max()
    assert 1e-5 < gap < 5e-2
