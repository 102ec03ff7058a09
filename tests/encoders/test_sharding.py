"""Encoders and attention on a mesh with explicit axes, where arrays carry their sharding in their type."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rope_jax as rj
from examples import DIMS, ONE_OF_EACH, tables_of_first_layer
from rope_jax.model.attention import attend

BATCH, LENGTH = 4, 6


@partial(jax.jit, static_argnums=0)
def layer(encoder, params, x, q, k, v, places):
    """What every hook and attention give, and the gradient of the sum of their squares."""

    def outputs(params, x, q, k, v):
        positions = rj.Positions(query=places)
        tables = tables_of_first_layer(encoder, params, positions)
        embedded, (q, k) = encoder.embed(tables, x, positions), encoder.rotate(tables, q, k)
        out = attend(q, k, v, positions, bias=partial(encoder.bias, tables), block_size=4)  # not a divisor of the length
        return embedded, q, k, out, encoder.bias(tables, q, k, positions)

    def squares(*args):
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(outputs(*args)))

    return outputs(params, x, q, k, v), jax.grad(squares, argnums=(0, 1, 2, 3, 4))(params, x, q, k, v)


def check(encoder):
    """An encoder and attention give the same for positions that are sharded over examples."""
    rng = np.random.default_rng(0)
    shapes = ((BATCH, LENGTH, 16), *[(BATCH, LENGTH, 2, 8)] * 3)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    places = np.arange(LENGTH, dtype=np.int32) + 3 * np.arange(BATCH, dtype=np.int32)[:, None]
    params = encoder.init(jax.random.key(0), DIMS)
    expected = layer(encoder, params, *arrays, places)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        got = layer(encoder, params, *jax.device_put((*arrays, places), NamedSharding(mesh, PartitionSpec("data"))))
    chex.assert_trees_all_close(got, expected, rtol=1e-3, atol=1e-3)
    (embedded, *_), _ = got
    assert embedded.sharding.spec[0] == "data"


def test_tables_are_read_with_sharded_positions():
    check(rj.Compose(rj.Learned(max_length=64), rj.T5Bias()))


@pytest.mark.slow
def test_every_encoder_gives_with_sharded_positions_what_it_gives_on_one_device():
    for encoder in ONE_OF_EACH:
        check(encoder)
