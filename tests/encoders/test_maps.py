"""YaRN, LongRoPE, Llama3 and Proportional: their formulas in float64, their edges, their errors. (Transformers: test_scaling.)"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_jax as rj
from looping import for_each

BASES = st.sampled_from([500.0, 10_000.0, 500_000.0])


def whole(frequencies):
    return np.asarray(frequencies.inv_freq, np.float64) + np.asarray(frequencies.inv_freq_low, np.float64)


def default(dim, base=10_000.0):
    return np.array([base ** (-2 * i / dim) for i in range(dim // 2)])


@settings(deadline=None, max_examples=40)
@given(
    dim=st.sampled_from([2, 4, 16, 64, 128]),
    base=BASES,
    factor=st.floats(1.0, 64.0),
    trained=st.integers(8, 40_000),
    truncate=st.booleans(),
)
def test_yarn_is_its_formula(dim, base, factor, trained, truncate):
    """arXiv:2309.00071, eq. 17-23, a pair at a time; the ends of the ramp as in the released code."""
    got = rj.rotary_frequencies(dim, base=base, scaling=rj.YaRN(factor=factor, original_length=trained, truncate=truncate))

    def pair(periods):
        return dim * math.log(trained / (periods * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(32), pair(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    for i, kept in enumerate(default(dim, base)):
        ramp = min(max((i - low) / (high - low), 0), 1)
        assert whole(got)[i] == pytest.approx((1 - ramp) * kept + ramp * kept / factor, rel=1e-12)
    assert float(got.attention_scale) == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-6)


@for_each(
    ("options", "expected"),
    [
        ({}, 0.1 * math.log(8) + 1),
        ({"mscale": 0.7}, 0.1 * math.log(8) + 1),  # alone it does not count
        ({"mscale": 0.7, "mscale_all_dim": 0.5}, (0.07 * math.log(8) + 1) / (0.05 * math.log(8) + 1)),
        ({"mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.25}, 1.25),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarns_attention_scale(options, expected):
    got = rj.rotary_frequencies(16, scaling=rj.YaRN(**{"factor": 8.0, "original_length": 64} | options))
    assert float(got.attention_scale) == pytest.approx(expected, rel=1e-6)
    cos, _ = rj.rotary_tables(got, jnp.zeros(1))
    np.testing.assert_allclose(cos, expected, rtol=1e-6)  # folded in


@settings(deadline=None, max_examples=40)
@given(base=BASES, factor=st.floats(1.0, 32.0), low=st.floats(0.5, 2.0), more=st.floats(0.5, 8.0), trained=st.integers(8, 10_000))
def test_llama3_is_its_formula_and_continuous_at_its_edges(base, factor, low, more, trained):
    scaling = rj.Llama3(factor=factor, original_length=trained, low_freq_factor=low, high_freq_factor=low + more)
    for kept, got in zip(default(64, base), whole(rj.rotary_frequencies(64, base=base, scaling=scaling)), strict=True):
        wavelength = 2 * math.pi / kept
        if wavelength < trained / (low + more):
            expected = kept
        elif wavelength > trained / low:
            expected = kept / factor
        else:
            smooth = (trained / wavelength - low) / more
            expected = (1 - smooth) * kept / factor + smooth * kept
        assert got == pytest.approx(expected, rel=1e-9)
    # just inside and just outside of both edges; the slope is at most (1 + periods / more) for each period
    for periods in (low, low + more):
        pair = np.array([2 * math.pi * periods / trained * (1 - 1e-9), 2 * math.pi * periods / trained * (1 + 1e-9)])
        left, right = scaling.apply(pair, base=base, length=None, xp=np)[0] / pair
        assert abs(left - right) < 1e-6


LONG = rj.LongRoPE(short_factor=(1.0, 1.5), long_factor=(2.0, 6.0), original_length=26, factor=4.0)


def test_longrope_changes_lists_above_the_original_length_and_remembers_nothing():
    lengths = np.array([1, 27, 26, 1000, 26])
    got = rj.rotary_frequencies(4, scaling=LONG, length=lengths)
    short, long = default(4) / [1.0, 1.5], default(4) / [2.0, 6.0]
    np.testing.assert_allclose(whole(got), np.stack([short, long, short, long, short]), rtol=1e-12)
    np.testing.assert_allclose(got.attention_scale, math.sqrt(1 + math.log(4) / math.log(26)), rtol=1e-6)
    traced = jax.jit(lambda n: rj.rotary_frequencies(4, scaling=LONG, length=n))(lengths)
    np.testing.assert_allclose(traced.inv_freq, whole(got), rtol=2e-6)
    np.testing.assert_allclose(whole(rj.rotary_frequencies(4, scaling=LONG)), short, rtol=1e-12)  # no length: the short list


@for_each("fraction", [0.0, 0.25, 0.5, 0.7, 1.0])
def test_proportional_keeps_the_fastest(fraction):
    got = whole(rj.rotary_frequencies(16, scaling=rj.Proportional(fraction=fraction, factor=2.0)))
    kept = int(fraction * 16 // 2)
    np.testing.assert_allclose(got, np.where(np.arange(8) < kept, default(16) / 2, 0), rtol=1e-12)


@for_each("dim", [2, 16])
@for_each(
    "scaling",
    [
        rj.YaRN(factor=1.0, original_length=64),
        rj.Llama3(factor=1.0, original_length=64),
        rj.Proportional(fraction=1.0),
    ],
)
def test_factor_one_is_the_identity(scaling, dim):
    got = rj.rotary_frequencies(dim, scaling=scaling)
    np.testing.assert_allclose(whole(got), default(dim), rtol=1e-14)
    assert float(got.attention_scale) == 1


@for_each(
    "scaling",
    [
        rj.YaRN(factor=4.0, original_length=64),
        rj.LongRoPE(short_factor=(1.0,), long_factor=(2.0,), original_length=8, factor=2.0),
        rj.Llama3(factor=4.0, original_length=64),
        rj.Proportional(fraction=0.5),
    ],
)
def test_a_learned_base_has_a_finite_gradient_even_with_one_pair(scaling):
    def total(log_base):
        return jnp.sum(rj.rotary_frequencies(2, base=jnp.exp(log_base), scaling=scaling).inv_freq)

    value, gradient = jax.value_and_grad(total)(jnp.log(10_000.0))
    assert np.isfinite(value)
    assert np.isfinite(gradient)


@settings(deadline=None, max_examples=25)
@given(dim=st.integers(1, 64).map(lambda n: 2 * n), base=st.floats(2.0, 1e6), factor=st.floats(1.0, 32.0))
def test_resonance_has_whole_wavelengths(dim, base, factor):
    """Rounded from those of the map that it follows; pairs of frequency 0 keep it."""
    for of in (None, rj.NTK(factor=factor), rj.YaRN(factor=factor, original_length=256), rj.Proportional(fraction=0.5)):
        plain, whole = (rj.rotary_frequencies(dim, base=base, scaling=s) for s in (of, rj.Resonance(of=of)))
        for before, after in zip(np.asarray(plain.inv_freq, np.float64), np.asarray(whole.inv_freq, np.float64), strict=True):
            if before == 0:
                assert after == 0
                continue
            assert round(2 * np.pi / after) == pytest.approx(2 * np.pi / after, rel=1e-6)
            assert abs(2 * np.pi / after - 2 * np.pi / before) <= 0.5 + 2e-6 * 2 * np.pi / before
        assert whole.attention_scale == plain.attention_scale


@for_each(
    ("make", "message"),
    [
        (lambda: rj.YaRN(factor=0.0, original_length=8), "YaRN factor must be positive, got 0.0"),
        (lambda: rj.YaRN(factor=2.0, original_length=0), "YaRN original_length must be at least 1, got 0"),
        (lambda: rj.YaRN(factor=2.0, original_length=8, beta_fast=1.0, beta_slow=2.0), "needs 0 < beta_slow <= beta_fast"),
        (lambda: rj.YaRN(factor=2.0, original_length=8, attention_factor=0.0), "YaRN attention_factor must be positive, got 0.0"),
        (lambda: rj.YaRN(factor=2.0, original_length=8, truncate=1), "YaRN truncate must be a bool, got 1"),
        (lambda: rj.Llama3(factor=2.0, original_length=8, low_freq_factor=5.0), "low_freq_factor <= high_freq_factor, got"),
        (lambda: rj.Llama3(factor=-1.0, original_length=8), "Llama3 factor must be positive, got -1.0"),
        (lambda: rj.Proportional(fraction=1.5), "Proportional fraction must be from 0 to 1, got 1.5"),
        (lambda: rj.LongRoPE(short_factor=(1.0,), long_factor=(0.0,), original_length=8, factor=2.0), "must hold positive"),
        (lambda: rj.LongRoPE(short_factor=(1.0,), long_factor=(1.0,), original_length=1, factor=2.0), "give attention_factor"),
        (lambda: rj.rotary_frequencies(8, scaling=LONG), "LongRoPE short_factor has 2 numbers, but rotary_dim 8 has 4 pairs"),
        (
            lambda: rj.check_requirements(rj.RoPE(scaling=LONG), rj.Dims(width=16, num_heads=2, head_dim=8)),
            "short_factor has 2 numbers",
        ),
        (lambda: rj.rotary_frequencies(8, base=1.0, scaling=rj.YaRN(factor=2.0, original_length=8)), "YaRN needs a base above 1"),
    ],
)
def test_what_a_map_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_of_whole_numbers_are_lists_of_floats():
    """So that equal maps are equal everywhere, in hashes too."""
    scaling = rj.LongRoPE(short_factor=(1, 2), long_factor=(3, 4), original_length=8, factor=2)
    assert scaling.short_factor == (1.0, 2.0)
    assert {type(x) for x in scaling.long_factor} == {float}
    assert type(rj.YaRN(factor=2, original_length=8, mscale=1).mscale) is float
