"""What encoders require of positions, sizes and layers, and that what is accepted runs."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from examples import DIMS, ENCODERS, tables_of_first_layer
from looping import for_each

SMALL = rj.Dims(width=6, num_heads=2, head_dim=3)
ODD = rj.Dims(width=7, num_heads=1, head_dim=7)


@for_each(
    ("encoder", "dims", "positions", "message"),
    [
        # axes
        (
            rj.RoPE(),
            DIMS,
            {"position_axes": 2},
            "RoPE reads positions of one axis, but these have 2; use RoPE with sections=",
        ),
        (rj.RoPE(), DIMS, {"position_axes": 1}, "RoPE reads positions of one axis, but these have 1"),
        (rj.ALiBi(), DIMS, {"position_axes": 3}, "ALiBi reads positions of one axis, but these have 3"),
        (rj.ALiBi(axis=2), DIMS, {"position_axes": 2}, "ALiBi reads positions of at least 3 axes, but these have 2"),
        (rj.RoPE(sections=(2, 2)), DIMS, {"position_axes": 3}, "RoPE reads positions of 1 to 2 axes, but these have 3"),
        (
            rj.RoPE(sections=(2, 2), arrangement="axial"),
            DIMS,
            {"position_axes": 3},
            "RoPE reads positions of 2 axes, but these have 3",
        ),
        (rj.LogN(original_length=8), DIMS, {"position_axes": 2}, "LogN reads positions of one axis, but these have 2"),
        (
            rj.Compose(rj.RoPE(sections=(2, 2)), rj.Kerple()),
            DIMS,
            {"position_axes": 2},
            "Kerple reads positions of one axis, but these have 2",
        ),
        # real positions
        (
            rj.Learned(max_length=8),
            DIMS,
            {"real_positions": True},
            "Learned needs integer positions, but these are real numbers; use an encoder that is a function of real positions",
        ),
        (rj.T5Bias(), DIMS, {"real_positions": True}, "T5Bias needs integer positions, but these are real numbers"),
        (rj.Compose(rj.RoPE(), rj.T5Bias()), DIMS, {"real_positions": True}, "T5Bias needs integer positions"),
        # positions too large
        (
            rj.Learned(max_length=8),
            DIMS,
            {"max_position": 8},
            "Learned(max_length=8) has no row for position 8; raise max_length to 9 or more, or keep to 8 input positions",
        ),
        (
            rj.XPos(scale_base=8.0),
            DIMS,
            {"max_position": 511},
            "XPos(scale_base=8.0, centre=0.0) holds positions up to 510 from its centre in float32, but position 511 is required",
        ),
        (
            rj.Compose(rj.Learned(max_length=64), rj.Learned(max_length=8)),
            DIMS,
            {"max_position": 20},
            "Learned(max_length=8) has no row for position 20",
        ),
        # head sizes
        (rj.RoPE(), SMALL, {}, "RoPE rotates features in pairs, but int(head_dim 3 * rotary_fraction 1.0) = 3"),
        (rj.XPos(), SMALL, {}, "XPos rotates features in pairs, but int(head_dim 3 * rotary_fraction 1.0) = 3"),
        (rj.RoPE(head_fraction=0.4), DIMS, {}, "RoPE head_fraction 0.4 of 2 heads gives no head; use at least 0.5"),
        (rj.RoPE(sections=(2, 1)), DIMS, {}, "sections=(2, 1) must not be negative and must sum to the 4 rotated pairs, got 3"),
        (rj.HardALiBi(masked_heads=3), DIMS, {}, "HardALiBi masked_heads=3 is above the 2 heads of the model; use at most 2"),
        (rj.TransformerXL(), ODD, {}, "TransformerXL needs an even width, got 7"),
        (
            rj.RoPE(scaling=rj.LongRoPE(short_factor=(1.0,), long_factor=(2.0,), original_length=8, factor=2.0)),
            DIMS,
            {},
            "LongRoPE short_factor has 1 numbers, but rotary_dim 8 has 4 pairs",
        ),
        (rj.Compose(rj.ALiBi(), rj.Compose(rj.RoPE())), SMALL, {}, "RoPE rotates features in pairs"),
    ],
)
def test_what_does_not_fit_is_named(encoder, dims, positions, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rj.check_requirements(encoder, dims, **positions)


def hooks(encoder, params, positions):
    tables = tables_of_first_layer(encoder, params, positions)
    x, q, k = jnp.ones((5, 16)), jnp.ones((5, 2, 8)), jnp.ones((5, 2, 8))
    q, k = encoder.rotate(tables, q, k)
    return encoder.embed(tables, x, positions), q, k, encoder.bias(tables, q, k, positions)


AXES = (None, 1, 2, 3)


@for_each("encoder", [*ENCODERS, rj.RoPE(sections=(2, 2), arrangement="axial"), rj.ALiBi(axis=0), rj.T5Bias(axis=1)])
def test_what_is_accepted_runs_and_what_is_refused_does_not(encoder):
    """Positions of any number of axes, whole or real. Shapes and types decide, so nothing is computed."""
    params = encoder.init(jax.random.key(0), DIMS)
    for axes, real in itertools.product(AXES, (False, True)):
        query = jnp.ones((5,) if axes is None else (axes, 5), float if real else int)
        positions = rj.Positions(query=query, length=5, axes=axes)
        try:
            rj.check_requirements(encoder, DIMS, position_axes=axes, real_positions=real, max_position=4)
        except ValueError:
            with pytest.raises(ValueError, match=r"axis|axes|integer"):
                jax.eval_shape(lambda positions: hooks(encoder, params, positions), positions)
        else:
            x, q, k, bias = jax.eval_shape(lambda positions: hooks(encoder, params, positions), positions)
            assert (x.shape, q.shape, k.shape) == ((5, 16), (5, 2, 8), (5, 2, 8)), (axes, real)
            assert bias is None or bias.shape[-2:] == (5, 5), (axes, real)


def test_the_largest_position_that_is_accepted_is_the_last_that_works():
    limited = [encoder for encoder in ENCODERS if encoder.requirements.max_position is not None]
    assert {rj.Learned, rj.XPos} <= {type(encoder) for encoder in limited}
    for encoder in limited:
        largest = encoder.requirements.max_position
        rj.check_requirements(encoder, DIMS, max_position=largest)
        with pytest.raises(ValueError, match=str(largest + 1)):
            rj.check_requirements(encoder, DIMS, max_position=largest + 1)
        params = encoder.init(jax.random.key(0), DIMS)
        last = rj.Positions(query=jnp.full(5, largest), length=largest + 1)
        for leaf in jax.tree.leaves(hooks(encoder, params, last)):
            assert np.isfinite(np.asarray(leaf)).all(), encoder


def test_the_requirements_of_several_encoders_are_those_of_all():
    together = rj.Compose(
        rj.RoPE(sections=(2, 1, 1), scaling=rj.DynamicNTK(original_length=26)),
        rj.ALiBi(axis=1),
        rj.T5Bias(axis=0),
        rj.LogN(original_length=99, by="length"),
    ).requirements
    assert together.position_axes == (2, 3)
    assert together.whole_positions
    assert together.length
    assert together.original_lengths == {26, 99}
    assert together.max_position is None
    assert not together.per_layer
    assert rj.Compose(rj.Learned(max_length=8), rj.XPos(), rj.ALiBi(axis=1)).requirements.position_axes is None
    assert rj.Compose(rj.Learned(max_length=8), rj.XPos()).requirements.max_position == 7
    assert rj.Layers(rj.RoPE(), rj.Learned(max_length=8)).requirements.whole_positions
