"""`jax.export`: positions and frequencies go in and out of a serialised program, whose number of tokens may be symbolic."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import rope_jax as rj
from examples import DIMS, ONE_OF_EACH, tables_of_first_layer
from looping import for_each
from rope_jax.model.attention import attend


def exported(function, *arguments):
    """A function as it comes back from its serialised form."""
    return export.deserialize(export.export(jax.jit(function))(*arguments).serialize())


def test_positions_and_frequencies_are_arguments_and_results():
    positions = (
        rj.Positions(query=jnp.arange(4), length=jnp.int32(4)),
        rj.Positions(query=jnp.zeros((2, 4)), key=jnp.ones((2, 4)), axes=2, causal=False),
        rj.Positions(
            query=jnp.arange(4), query_order=jnp.arange(4), query_segment=jnp.zeros(4, int), key_segment=jnp.ones(4, int)
        ),
    )
    frequencies = rj.rotary_frequencies(8, scaling=rj.NTK(factor=2.0))
    for each in positions:
        given = (each, frequencies)
        got = exported(lambda *args: jax.tree.map(lambda x: x + 1, args), *given).call(*given)
        chex.assert_trees_all_equal(got, jax.tree.map(lambda x: x + 1, given))  # of the same classes and static fields
        assert (got[0].axes, got[0].causal) == (each.axes, each.causal)


@for_each("encoder", ONE_OF_EACH)
def test_the_numbers_of_examples_and_tokens_may_be_symbolic(encoder):
    params = encoder.init(jax.random.key(0), DIMS)

    def layer(x, q, k, v):
        length = x.shape[-2]
        positions = rj.Positions(query=rj.positions.contiguous(length), length=length)
        tables = tables_of_first_layer(encoder, params, positions)
        rotated, keys = encoder.rotate(tables, q, k)
        out = attend(rotated, keys, v, positions, bias=partial(encoder.bias, tables))
        return encoder.embed(tables, x, positions), out

    batch, length = export.symbolic_shape("b, t")
    shapes = ((batch, length, 16), *[(batch, length, 2, 8)] * 3)
    program = exported(layer, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    rng = np.random.default_rng(0)
    for size in ((2, 5), (1, 9)):
        arrays = [rng.normal(size=(*size, *shape[2:])).astype(np.float32) for shape in shapes]
        chex.assert_trees_all_close(program.call(*arrays), layer(*arrays), rtol=1e-4, atol=1e-4)


def test_where_a_symbolic_length_is_not_possible_the_error_says_so():
    [length] = export.symbolic_shape("t")
    for function in (
        lambda x: rj.sinusoidal(jnp.arange(3), x.shape[0]),
        lambda x: rj.rotary_frequencies(x.shape[0]).inv_freq,
        lambda x: rj.positions.context_parallel(x.shape[0], ranks=2, rank=0),
        lambda x: rj.positions.pose(jax.random.key(0), jnp.array([3]), x.shape[0], max_position=9),
        lambda x: rj.positions.randomized(jax.random.key(0), jnp.array([3]), x.shape[0], max_position=9),
        lambda x: rj.positions.random_offset(jax.random.key(0), jnp.array([3]), x.shape[0], max_position=9),
        lambda x: rj.positions.random_float(jax.random.key(0), jnp.array([3]), x.shape[0], max_position=9.0),
    ):
        with pytest.raises(ValueError, match="must be a Python int, got t"):
            exported(function, jax.ShapeDtypeStruct((length,), jnp.float32))
