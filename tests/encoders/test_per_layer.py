"""Encoders that differ from layer to layer: the same logits whether layers are written out or looped, and those of a pattern."""

from dataclasses import dataclass, replace

import chex
import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import encoding_params, functional
from rope_jax.study.config import ModelConfig

CONFIG = ModelConfig(num_layers=4, width=16, num_heads=2, mlp_factor=1)
BASES = (3.0, 20.0, 500.0, 10_000.0)
TOKENS, POSITIONS = jnp.array([1, 5, 3, 4, 4, 2, 6]), rj.Positions(query=jnp.arange(7), length=7)


@dataclass(frozen=True, kw_only=True)
class BaseOfLayer(rj.Encoder):
    """RoPE with another base in each layer."""

    bases: tuple[float, ...] = BASES

    def prepare(self, params, length, dims):
        each = [rj.rotary_frequencies(dims.head_dim, base=base) for base in self.bases]
        return jax.tree.map(lambda *x: jnp.stack(x), *each)

    def tables(self, prepared, positions):
        return jax.vmap(lambda frequencies: rj.rotary_tables(frequencies, positions.query))(prepared)

    def rotate(self, tables, q, k):
        return rj.rotate(q, *tables), rj.rotate(k, *tables)

    @property
    def requirements(self):
        return rj.Requirements(position_axes=None, per_layer=True)


@dataclass(frozen=True, kw_only=True)
class SlopeOfLayer(rj.Bias):
    """A learned slope for each layer and head; the layer's number reaches the hook by the tables."""

    def init(self, key, dims):
        return {"slope": jax.random.uniform(key, (dims.num_layers, dims.num_heads))}

    def prepare(self, params, length, dims):
        return params | {"layer": jnp.arange(dims.num_layers)}

    def bias(self, tables, q, k, positions):
        positions = self.positions_of(q, k, positions)
        distance = jnp.abs(positions.query[:, None] - positions.keys[None, :]).astype(jnp.float32)
        return -(1.0 + tables["layer"]) * tables["slope"][:, None, None] * distance[None]

    @property
    def requirements(self):
        return replace(super().requirements, per_layer=True)


def logits(encoder, params, *, scan_layers=False):
    _, apply = functional(CONFIG, 8, encoder, implementation=Implementation(scan_layers=scan_layers))
    return jax.jit(apply)(params, TOKENS, POSITIONS)


def drawn(encoder):
    return functional(CONFIG, 8, encoder)[0](jax.random.key(0))


def test_layers_looped_are_layers_written_out():
    for encoder in (
        BaseOfLayer(),
        SlopeOfLayer(),
        rj.Compose(BaseOfLayer(), rj.ALiBi()),
        rj.Compose(rj.RoPE(), SlopeOfLayer(), rj.LogN(original_length=4)),
        rj.Layers(BaseOfLayer(), rj.NoPE()),
        rj.Layers(rj.Compose(rj.RoPE(), SlopeOfLayer()), BaseOfLayer()),
    ):
        params = drawn(encoder)
        written_out, looped = (logits(encoder, params, scan_layers=scan) for scan in (False, True))
        np.testing.assert_allclose(looped, written_out, atol=1e-5, err_msg=str(encoder))


def test_each_layer_gets_its_entry():
    """The same as a pattern that names an encoder for each layer, which shares all weights."""
    params = drawn(BaseOfLayer())
    pattern = rj.Layers(*(rj.RoPE(base=base) for base in BASES))
    np.testing.assert_allclose(logits(BaseOfLayer(), params), logits(pattern, params), atol=1e-5)
    swapped = logits(BaseOfLayer(bases=BASES[::-1]), params)
    assert float(jnp.max(jnp.abs(swapped - logits(BaseOfLayer(), params)))) > 1e-4
    # in a pattern, layers 1 and 3 use the second and the fourth entry
    mixed = rj.Layers(rj.NoPE(), BaseOfLayer())
    by_name = rj.Layers(rj.NoPE(), rj.RoPE(base=BASES[1]), rj.NoPE(), rj.RoPE(base=BASES[3]))
    for scan in (False, True):
        np.testing.assert_allclose(logits(mixed, params, scan_layers=scan), logits(by_name, params), atol=1e-5)


def test_gradients_reach_every_layer_looped_and_written_out():
    encoder = rj.Compose(rj.RoPE(), SlopeOfLayer())
    params = drawn(encoder)
    found = [jax.grad(lambda p, scan=scan: jnp.sum(logits(encoder, p, scan_layers=scan) ** 2))(params) for scan in (False, True)]
    chex.assert_trees_all_close(*found, atol=1e-4, rtol=1e-4)
    [slope] = jax.tree.leaves(encoding_params(found[0]))
    assert slope.shape == (4, 2)
    assert bool(jnp.all(slope != 0))
