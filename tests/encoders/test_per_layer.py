"""Encoders that differ from layer to layer: looped, scanned, and written out with one plain encoder for each layer."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from looping import for_each
from plain_model import forward
from rope_jax.encoders.layers import as_layers
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.settings import ModelConfig

CONFIG = ModelConfig(num_layers=4, width=16, num_heads=2, mlp_factor=1)
TOKENS = jnp.array([1, 5, 3, 4, 4, 2, 6])
POSITIONS = rj.Positions(query=jnp.arange(7), length=7)
BASE = 20.0


@dataclass(frozen=True, kw_only=True)
class RoPEPerLayer(rj.Encoder):
    """RoPE with the base BASE * growth^layer."""

    growth: float = 4.0

    def prepare(self, params, length, dims):
        each = [rj.rotary_frequencies(dims.head_dim, base=BASE * self.growth**layer) for layer in range(dims.num_layers)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def tables(self, prepared, positions):
        return jax.vmap(lambda frequencies: rj.rotary_tables(frequencies, positions.query))(prepared)

    def rotate(self, tables, q, k):
        return rj.rotate(q, *tables), rj.rotate(k, *tables)

    @property
    def requirements(self):
        return rj.Requirements(position_axes=None, per_layer=True)

    @property
    def retunable(self):
        return frozenset({"growth"})


@dataclass(frozen=True, kw_only=True)
class SlopesPerLayer(rj.Bias):
    """-slope * distance, with a learned slope for each layer and head."""

    def init(self, key, dims):
        return {"slopes": jax.random.uniform(key, (dims.num_layers, dims.num_heads))}

    def bias(self, tables, q, k, positions):
        positions = self.positions_of(q, k, positions)
        return penalty(tables["slopes"], positions)

    @property
    def requirements(self):
        return rj.Requirements(position_axes=None, per_layer=True)


@dataclass(frozen=True, kw_only=True)
class Slopes(rj.Bias):
    """The bias of one layer of SlopesPerLayer."""

    slopes: tuple[float, ...]

    def bias(self, tables, q, k, positions):
        return penalty(jnp.array(self.slopes), positions)


def penalty(slopes, positions):
    distance = jnp.abs(positions.query[:, None] - positions.query[None, :]).astype(jnp.float32)
    return -slopes[:, None, None] * distance[None]


def rope(layer, growth=4.0):
    return rj.RoPE(base=BASE * growth**layer)


def slopes(params, layer, *path):
    for name in path:
        params = params[name]
    return Slopes(slopes=tuple(np.asarray(params["slopes"], np.float64)[layer].tolist()))


# an encoder, and the plain encoder of each of its layers, which may depend on the parameters
CASES = [
    (RoPEPerLayer(), lambda params, layer: rope(layer)),
    (SlopesPerLayer(), lambda params, layer: slopes(params, layer, "encoder0")),
    (
        rj.Compose(rj.ALiBi(), RoPEPerLayer(growth=0.5), SlopesPerLayer()),
        lambda params, layer: rj.Compose(rj.ALiBi(), rope(layer, 0.5), slopes(params, layer, "encoder0", "encoder2")),
    ),
    (rj.Layers(RoPEPerLayer(), rj.NoPE()), lambda params, layer: rj.NoPE() if layer % 2 else rope(layer)),
    (
        rj.Layers(rj.Compose(RoPEPerLayer(), rj.ALiBi()), SlopesPerLayer()),
        lambda params, layer: slopes(params, layer, "encoder1") if layer % 2 else rj.Compose(rope(layer), rj.ALiBi()),
    ),
    (
        rj.Layers(RoPEPerLayer(), RoPEPerLayer(growth=0.5)),
        lambda params, layer: rope(layer, 0.5 if layer % 2 else 4.0),
    ),
]


@for_each(("encoder", "encoder_of_layer"), CASES)
def test_looped_scanned_and_written_out_are_the_same(encoder, encoder_of_layer):
    """Logits and gradients, for periods of 1 and 2 layers of 4; every learned number has a gradient."""
    init, looped = functional(CONFIG, 8, encoder)
    _, scanned = functional(CONFIG, 8, encoder, implementation=Implementation(scan_layers=True))
    params = init(jax.random.key(0))
    period = len(as_layers(encoder).encoders)

    def gradient_and_logits(apply):
        def total(params):
            logits = apply(params, TOKENS, POSITIONS)
            return jnp.sum(jnp.sin(logits)), logits

        return jax.jit(jax.grad(total, has_aux=True))(params)

    loops = [eqn for eqn in jax.make_jaxpr(scanned)(params, TOKENS, POSITIONS).eqns if eqn.primitive.name == "scan"]
    assert [eqn.params["length"] for eqn in loops] == [4 // period - (period > 1)]
    (gradient, logits), (scanned_gradient, scanned_logits) = gradient_and_logits(looped), gradient_and_logits(scanned)
    np.testing.assert_allclose(scanned_logits, logits, atol=1e-5)
    chex.assert_trees_all_close(scanned_gradient, gradient, atol=1e-4)
    each = [encoder_of_layer(encoding_params(params), layer) for layer in range(4)]
    np.testing.assert_allclose(logits, forward(params, each, CONFIG, TOKENS, POSITIONS), rtol=1e-4, atol=1e-5)
    # the layers do differ: those of the first period in all layers give other logits
    alike = [each[layer % period] for layer in range(4)]
    assert np.abs(forward(params, alike, CONFIG, TOKENS, POSITIONS) - logits).max() > 1e-4
    for leaf in jax.tree.leaves(encoding_params(gradient)):
        used = np.asarray(leaf).any(axis=-1)
        assert used.tolist() == [True] * 4 if period == 1 else [False, True] * 2  # an encoder's entries for its own layers


def test_a_variant_of_an_encoder_that_differs_from_layer_to_layer():
    """What it prepares enters the trained model, as in evaluation, looped and scanned."""
    trained, variant = (rj.Layers(RoPEPerLayer(growth=growth), rj.NoPE()) for growth in (4.0, 0.5))
    init, apply = functional(CONFIG, 8, trained)
    _, scanned = functional(CONFIG, 8, trained, implementation=Implementation(scan_layers=True))
    params = init(jax.random.key(0))
    prepared = variant.prepare({}, 7, CONFIG.dims)
    expected = functional(CONFIG, 8, variant)[1](params, TOKENS, POSITIONS)
    for run in (apply, scanned):
        np.testing.assert_allclose(run(params, TOKENS, POSITIONS, prepared), expected, atol=1e-5)
    assert np.abs(expected - apply(params, TOKENS, POSITIONS)).max() > 1e-4


def test_the_tables_of_a_composite_have_an_entry_for_every_layer():
    encoder = rj.Compose(rj.ALiBi(), RoPEPerLayer())
    tables = encoder.tables(encoder.prepare({}, 7, CONFIG.dims), POSITIONS)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(tables)} == {CONFIG.num_layers}
