"""xPos against rotations of complex numbers in float64: scores, centre, ranges, and what it shares with RoPE."""

import cmath
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
from rope_jax.encoders.base import changed_options

DIMS = rj.Dims(width=16, num_heads=2, head_dim=8)
QUERY = np.array([[0, 3, 7, 40], [2, 2, 90, 130]])  # neither contiguous nor sorted
KEY = np.array([[0, 1, 5, 40, 41], [4, 2, 9, 80, 3]])
CENTRES = (-1500.0, 2048.5)


def contents(*leading, dtype=jnp.float32):
    return [jax.random.normal(jax.random.key(i), (*leading, n, 2, 8)).astype(dtype) for i, n in enumerate((4, 5))]


def pair_of(vector, i, pairs, layout):
    return complex(vector[i], vector[i + pairs]) if layout == "half" else complex(vector[2 * i], vector[2 * i + 1])


def naive_scores(q, k, query, key, *, layout="half", rotary=8, heads=2, scale_base=512.0, factor=1.0):
    """arXiv:2212.10554, eq. 13: the score of RoPE with pair i times zeta_i^((m - n) / scale_base). float64 [H, Tq, Tk]."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    out = np.einsum("thd,shd->hts", q, k)  # heads that are not rotated
    for h, a, b in np.ndindex(heads, len(query), len(key)):
        distance = float(query[a]) - float(key[b])
        score = float(q[a, h, rotary:] @ k[b, h, rotary:])
        for i in range(rotary // 2):
            zeta = (2 * i + 0.4 * rotary) / (1.4 * rotary)
            rotation = cmath.exp(1j * distance * 10_000 ** (-2 * i / rotary) / factor)
            x, y = (pair_of(each, i, rotary // 2, layout) for each in (q[a, h], k[b, h]))
            score += zeta ** (distance / scale_base) * (x * y.conjugate() * rotation).real
        out[h, a, b] = score
    return out


@partial(jax.jit, static_argnums=0)
def rotated(encoder, q, k, positions, params=None):
    prepared = encoder.prepare(params or {}, positions.length, DIMS)
    return encoder.rotate(encoder.tables(prepared, positions), q, k)


def scores(encoder, q, k, positions, params=None):
    """float64 products, so that what is measured is the tables' and the rotation's error."""
    q, k = (np.asarray(x, np.float64) for x in rotated(encoder, q, k, positions, params))
    return np.einsum("...thd,...shd->...hts", q, k)


def test_decays_are_the_papers():
    for dim in (2, 8, 64):
        expected = [(2 * i + 0.4 * dim) / (1.4 * dim) for i in range(dim // 2)]
        np.testing.assert_allclose(rj.xpos_decay(dim), expected, rtol=1e-6)
    assert rj.xpos_decay(8).dtype == jnp.float32


@for_each("layout", ["half", "interleaved"])
@for_each(
    "options",
    [
        {},
        {"scale_base": 20.0},
        {"rotary_fraction": 0.5, "head_fraction": 0.5, "scale_base": 64.0},
        {"rotary_fraction": 0.25},  # one pair
    ],
)
def test_scores_are_those_of_rope_that_decay(layout, options):
    encoder = rj.XPos(layout=layout, **options)
    q, k = contents(2)
    got = scores(encoder, q, k, rj.Positions(query=jnp.asarray(QUERY), key=jnp.asarray(KEY)))
    size = {"rotary": int(8 * encoder.rotary_fraction), "heads": int(2 * encoder.head_fraction)}
    for row in range(2):
        expected = naive_scores(q[row], k[row], QUERY[row], KEY[row], layout=layout, scale_base=encoder.scale_base, **size)
        np.testing.assert_allclose(got[row], expected, rtol=2e-5, atol=2e-4)


@settings(deadline=None, max_examples=15)
@given(shift=st.integers(-3000, 3000), centre=st.sampled_from(CENTRES))
def test_scores_are_relative_and_the_same_from_any_centre(shift, centre):
    q, k = contents()
    positions = rj.Positions(query=jnp.asarray(QUERY[0] + shift), key=jnp.asarray(KEY[0] + shift))
    got = scores(rj.XPos(), q, k, positions)
    np.testing.assert_allclose(got, naive_scores(q, k, QUERY[0], KEY[0]), rtol=2e-3, atol=4e-3)
    elsewhere = scores(rj.XPos(centre=centre), q, k, positions)
    np.testing.assert_allclose(elsewhere, got, rtol=2e-3, atol=4e-3)


@for_each("centre", CENTRES)
def test_at_the_centre_it_is_rope_and_norms_balance_elsewhere(centre):
    q, k = contents()
    positions = rj.Positions(query=jnp.full(4, centre), key=jnp.full(5, centre))
    for ours, plain in zip(rotated(rj.XPos(centre=centre), q, k, positions), rotated(rj.RoPE(), q, k, positions), strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-6)
    away = rj.Positions(query=jnp.full(4, centre + 300), key=jnp.full(5, centre + 300))
    ours, plain = (rotated(encoder, q, k, away) for encoder in (rj.XPos(centre=centre), rj.RoPE()))
    zeta = np.tile(np.asarray(rj.xpos_decay(8), np.float64), 2) ** (300 / 512)  # layout "half": pair i is (i, i + 4)
    np.testing.assert_allclose(ours[0], np.asarray(plain[0]) * zeta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1], np.asarray(plain[1]) / zeta, rtol=1e-5, atol=1e-6)


def test_a_frequency_map_rotates_more_slowly_and_leaves_the_decay():
    q, k = contents()
    positions = rj.Positions(query=jnp.asarray(QUERY[0]), key=jnp.asarray(KEY[0]))
    got = scores(rj.XPos(scaling=rj.Linear(factor=4.0), scale_base=30.0), q, k, positions)
    expected = naive_scores(q, k, QUERY[0], KEY[0], scale_base=30.0, factor=4.0)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-4)
    yarn = rj.YaRN(factor=4.0, original_length=64, attention_factor=3.0)  # cos and sin times 3, so scores times 9
    ours, plain = (scores(rj.XPos(scaling=yarn, scale_base=b), q, k, positions) for b in (1e9, 30.0))
    np.testing.assert_allclose(ours, scores(rj.RoPE(scaling=yarn), q, k, positions), rtol=1e-4, atol=1e-3)
    zero = rj.Positions(query=jnp.array([7]), key=jnp.array([7]))
    here = scores(rj.XPos(scaling=yarn, scale_base=30.0), q[:1], k[:1], zero)
    np.testing.assert_allclose(here, 9 * naive_scores(q[:1], k[:1], [7], [7]), rtol=1e-4)
    assert np.abs(ours - plain).max() > 0.1


def test_bfloat16_comes_back_and_the_tables_stay_float32():
    q, k = contents(dtype=jnp.bfloat16)
    positions = rj.Positions(query=jnp.array([4000, 4001, 4003, 4100]), key=jnp.array([4000, 3999, 3001, 3990, 4002]))
    narrow = rotated(rj.XPos(), q, k, positions)
    exact = rotated(rj.XPos(), q.astype(jnp.float32), k.astype(jnp.float32), positions)
    for ours, wide in zip(narrow, exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ours, wide.astype(jnp.bfloat16))
    tables = rj.XPos().tables(rj.XPos().prepare({}, None, DIMS), positions)
    assert {leaf.dtype for leaf in jax.tree.leaves(tables)} == {jnp.dtype(jnp.float32)}


@for_each(("scale_base", "centre"), [(512.0, 0.0), (8.0, 0.0), (512.0, 10_000.0), (64.0, -50.5)])
def test_up_to_the_longest_length_that_check_accepts_nothing_leaves_float32(scale_base, centre):
    encoder = rj.XPos(scale_base=scale_base, centre=centre)

    def accepts(length):
        try:
            rj.check_requirements(encoder, DIMS, max_position=length - 1)
        except ValueError:
            return False
        return True

    low, high = 1, 10**7
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    assert 1 < low < 10**6
    assert (low - 1 - centre) / scale_base * math.log(3.5) > 40  # keys of e^40: the bound is not absurdly low either
    q, _ = contents()
    positions = low - 1 - np.array([0, 1, 2, 40])
    got = scores(encoder, q, q, rj.Positions(query=jnp.asarray(positions)))
    assert np.isfinite(got).all()
    expected = naive_scores(q, q, positions, positions, scale_base=scale_base)
    diagonal = range(4), range(4)  # distance 0, whose score no angle disturbs
    np.testing.assert_allclose(got[:, *diagonal], expected[:, *diagonal], rtol=1e-3)
    for leaf in jax.tree.leaves(encoder.tables(encoder.prepare({}, None, DIMS), rj.Positions(query=jnp.array([0, low - 1])))):
        assert np.isfinite(np.asarray(leaf)).all()
    with pytest.raises(ValueError, match="in float32, but position"):
        rj.check_requirements(encoder, DIMS, max_position=high - 1)
    rj.check_requirements(encoder, DIMS, max_position=0)


def test_the_refusal_names_a_remedy_that_works():
    message = (
        "XPos(scale_base=512.0, centre=0.0) holds positions up to 32695 from its centre in float32, but position 49999 is "
        "required; raise scale_base, or move the centre"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        rj.check_requirements(rj.XPos(), DIMS, max_position=49_999)
    rj.check_requirements(rj.XPos(centre=25_000.0), DIMS, max_position=49_999)
    rj.check_requirements(rj.XPos(scale_base=783.0), DIMS, max_position=49_999)
    for centre in (0.0, 32_000.0):  # no centre helps, since position 0 must be held too
        with pytest.raises(ValueError, match="holds positions up to 32695 from its centre"):
            rj.check_requirements(rj.XPos(centre=centre), DIMS, max_position=199_999)
    rj.check_requirements(rj.XPos(scale_base=3132.0), DIMS, max_position=199_999)


@for_each("positions", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 50, 5000, 20_000]])
def test_gradients_are_finite_with_one_pair_too(positions):
    encoder = rj.XPos(learn_base=True, rotary_fraction=0.25)
    q, _ = contents()
    params = encoder.init(jax.random.key(0), DIMS)

    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(params, q, k):
        a, b = rotated(encoder, q, k, rj.Positions(query=jnp.asarray(positions)), params)
        return jnp.sum(jnp.where(jnp.tri(4, dtype=bool), jnp.einsum("thd,shd->hts", a, b), 0.0))

    derivatives = gradients(params, q, q[::-1])
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(derivatives))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(derivatives[1:]))


def test_its_variants_are_ropes():
    """Decay and centre act on positions, past what a variant prepares."""

    def changes(variant):
        return set(changed_options(rj.XPos(), variant)) - rj.XPos().retunable

    assert changes(rj.XPos(scaling=rj.NTK(factor=2.0), base=50.0)) == set()
    assert changes(rj.XPos(scale_base=64.0, centre=2.0, layout="interleaved")) == {"scale_base", "centre", "layout"}
    assert changes(rj.RoPE()) == {"the class"}


@for_each(
    ("make", "message"),
    [
        (lambda: rj.xpos_decay(7), "rotary_dim must be even and at least 2, got 7: features are rotated in pairs"),
        (lambda: rj.xpos_decay(0), "rotary_dim must be even and at least 2, got 0: features are rotated in pairs"),
        (lambda: rj.XPos(scale_base=0.0), "XPos scale_base must be positive, got 0.0; the paper has 512.0"),
        (lambda: rj.XPos(scale_base=math.inf), "XPos scale_base must be finite, got inf"),
        (lambda: rj.XPos(centre=math.nan), "XPos centre must be finite, got nan"),
        (
            lambda: rj.XPos(centre=1e6),
            "XPos centre=1000000.0 is more than 32695 positions from position 0, which is too far for float32",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
