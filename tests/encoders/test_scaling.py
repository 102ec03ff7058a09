"""RoPE's frequencies and the maps that stretch them: against transformers, and against their formulas in float64."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import rope_jax as rj
from looping import for_each

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "transformers_5_24.json").read_text())
PROPERTY = settings(deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
BASES = [10_000.0, 500_000.0, 5_000.0]


def naive(rotary_dim: int, base: float = 10_000.0) -> np.ndarray:
    """base^(-2i/d), one number at a time, in float64."""
    return np.array([1.0 / math.pow(base, 2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def naive_ntk(rotary_dim: int, base: float, factor: float) -> np.ndarray:
    """As published: a larger base, undefined for rotary_dim 2."""
    return naive(rotary_dim, base * factor ** (rotary_dim / (rotary_dim - 2)))


def naive_dynamic_ntk(rotary_dim: int, base: float, factor: float, original: int, length: int) -> np.ndarray:
    return naive_ntk(rotary_dim, base, factor * max(length, original) / original - (factor - 1))


def whole(frequencies: rj.Frequencies) -> np.ndarray:
    """The two float32 parts of the frequencies, added up in float64."""
    return np.asarray(frequencies.inv_freq, np.float64) + np.asarray(frequencies.inv_freq_low, np.float64)


# against transformers


def _name(case: dict) -> str:
    rope = case["config"]["rope_parameters"]
    return f"{rope['rope_type']}-{rope.get('factor')}-{rope['rope_theta']:g}-{case['head_dim']}-{case['length']}"


def _map(config: dict) -> rj.FrequencyMap:
    """The map that a case names, read by hand."""
    rope = config["rope_parameters"]
    kind, trained = rope["rope_type"], rope.get("original_max_position_embeddings", config["max_position_embeddings"])

    def given(*names: str) -> dict:
        return {name: tuple(rope[name]) if isinstance(rope[name], list) else rope[name] for name in names if name in rope}

    if kind == "linear":
        return rj.Linear(**given("factor"))
    if kind == "dynamic":
        return rj.DynamicNTK(original_length=config["max_position_embeddings"], **given("factor"))
    if kind == "yarn":
        names = ("factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate")
        return rj.YaRN(original_length=trained, **given(*names))
    if kind == "llama3":
        return rj.Llama3(original_length=trained, **given("factor", "low_freq_factor", "high_freq_factor"))
    if kind == "longrope":
        factor = {"factor": config["max_position_embeddings"] / trained} | given("factor")
        return rj.LongRoPE(original_length=trained, **factor, **given("short_factor", "long_factor", "attention_factor"))
    return rj.Proportional(fraction=rope["partial_rotary_factor"], **given("factor"))


@for_each("traced", [False, True])
@for_each("case", FIXTURE["frequencies"])
def test_equals_transformers(case: dict, traced: bool) -> None:
    rope = case["config"]["rope_parameters"]
    scaling = _map(case["config"])
    whole_head = rope["rope_type"] == "proportional"  # there the fraction is of the frequencies, not of the features
    rotary_dim = int(case["head_dim"] * (1.0 if whole_head else rope.get("partial_rotary_factor", 1.0)))
    length = case["length"]

    def run(base: float | jax.Array, length: int | jax.Array | None) -> rj.Frequencies:
        return rj.rotary_frequencies(rotary_dim, base=base, scaling=scaling, length=length)

    got = (jax.jit(run) if traced else run)(rope["rope_theta"], length)
    np.testing.assert_allclose(got.inv_freq, case["inv_freq"], rtol=2e-6)
    np.testing.assert_allclose(got.attention_scale, case["attention_scaling"], rtol=1e-6)


def test_the_fixture_has_every_type_and_only_dynamic_maps_need_the_length() -> None:
    kinds = [case["config"]["rope_parameters"]["rope_type"] for case in FIXTURE["frequencies"]]
    assert FIXTURE["source"].startswith("transformers 5.24.0")
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "linear": 3, "dynamic": 15, "longrope": 12, "yarn": 8, "llama3": 4, "proportional": 3,
    }  # fmt: skip

    assert [scaling.needs_length for scaling in (rj.Linear(factor=2.0), rj.NTK(factor=2.0), *DYNAMIC)] == [False] * 2 + [True] * 4


# the default


@for_each("rotary_dim", [2, 4, 16, 64, 128])
@for_each("base", [*BASES, 1.0, 0.5])
def test_the_default_in_float64(rotary_dim: int, base: float) -> None:
    got = rj.rotary_frequencies(rotary_dim, base=base)
    expected = naive(rotary_dim, base)
    np.testing.assert_array_equal(got.inv_freq, expected.astype(np.float32))
    np.testing.assert_allclose(whole(got), expected, rtol=1e-14)
    assert got.inv_freq.dtype == got.inv_freq_low.dtype == got.attention_scale.dtype == jnp.float32
    assert float(got.attention_scale) == 1


@for_each(
    ("scaling", "length", "expected"),
    [
        (rj.Linear(factor=2.37), None, naive(64) / 2.37),
        (rj.NTK(factor=3.7), None, naive_ntk(64, 10_000.0, 3.7)),
        (rj.DynamicNTK(factor=1.68, original_length=26), 77, naive_dynamic_ntk(64, 10_000.0, 1.68, 26, 77)),
        (rj.DynamicLinear(original_length=26), 77, naive(64) / (77 / 26)),
    ],
)
def test_the_low_part_completes_the_float64_value(scaling: rj.FrequencyMap, length: int | None, expected: np.ndarray) -> None:
    got = rj.rotary_frequencies(64, scaling=scaling, length=length)
    np.testing.assert_allclose(whole(got), expected, rtol=1e-14)
    assert np.any(np.asarray(got.inv_freq_low) != 0)


def test_the_low_part_is_zero_where_base_or_length_is_traced() -> None:
    scaling = rj.DynamicNTK(original_length=8)
    by_base = jax.jit(lambda b: rj.rotary_frequencies(16, base=b))(10_000.0)
    by_length = jax.jit(lambda n: rj.rotary_frequencies(16, scaling=scaling, length=n))(20)
    for got, expected in ((by_base, naive(16)), (by_length, naive_dynamic_ntk(16, 10_000.0, 1.0, 8, 20))):
        np.testing.assert_array_equal(got.inv_freq_low, np.zeros(8))
        np.testing.assert_allclose(got.inv_freq, expected, rtol=2e-6)


# each map


@for_each("base", BASES)
@for_each("rotary_dim", [4, 16, 128])
@for_each("factor", [0.5, 1.5, 8.0, 64.0])
def test_ntk_is_the_larger_base(rotary_dim: int, base: float, factor: float) -> None:
    got = rj.rotary_frequencies(rotary_dim, base=base, scaling=rj.NTK(factor=factor))
    larger = rj.rotary_frequencies(rotary_dim, base=base * factor ** (rotary_dim / (rotary_dim - 2)))
    np.testing.assert_allclose(whole(got), whole(larger), rtol=1e-13)
    np.testing.assert_allclose(whole(got), naive_ntk(rotary_dim, base, factor), rtol=1e-13)


@PROPERTY
@given(factor=st.floats(0.25, 100), rotary_dim=st.sampled_from([4, 6, 32, 128]), base=st.sampled_from(BASES))
def test_ntk_keeps_the_first_frequency_and_divides_the_last(factor: float, rotary_dim: int, base: float) -> None:
    default = whole(rj.rotary_frequencies(rotary_dim, base=base))
    got = whole(rj.rotary_frequencies(rotary_dim, base=base, scaling=rj.NTK(factor=factor)))
    assert got[0] == default[0] == 1
    assert got[-1] == pytest.approx(default[-1] / factor, rel=1e-13)
    # in between, each step divides by the same further amount: frequencies fall, they never rise, when stretching
    steps = np.diff(np.log(got / default))
    np.testing.assert_allclose(steps, -math.log(factor) / (rotary_dim // 2 - 1), atol=1e-12)


@for_each("factor", [0.5, 2.0, 3.7])
def test_linear_divides_every_frequency(factor: float) -> None:
    got = rj.rotary_frequencies(16, scaling=rj.Linear(factor=factor))
    np.testing.assert_allclose(whole(got), naive(16) / factor, rtol=1e-14)


@for_each("scaling", [rj.Linear(factor=1.0), rj.NTK(factor=1.0)])
@for_each("rotary_dim", [2, 4, 64])
def test_factor_one_is_the_identity(scaling: rj.FrequencyMap, rotary_dim: int) -> None:
    got, default = rj.rotary_frequencies(rotary_dim, scaling=scaling), rj.rotary_frequencies(rotary_dim)
    for mine, theirs in zip(got, default, strict=True):
        np.testing.assert_array_equal(mine, theirs)


DYNAMIC = [
    rj.DynamicNTK(original_length=26),
    rj.DynamicNTK(factor=2.37, original_length=26),
    rj.DynamicNTK(factor=0.3, original_length=26),
    rj.DynamicLinear(original_length=26),
]


def naive_dynamic(scaling: rj.FrequencyMap, rotary_dim: int, base: float, length: int) -> np.ndarray:
    if isinstance(scaling, rj.DynamicLinear):
        return naive(rotary_dim, base) / (max(length, scaling.original_length) / scaling.original_length)
    return naive_dynamic_ntk(rotary_dim, base, scaling.factor, scaling.original_length, length)


@for_each("scaling", DYNAMIC)
def test_dynamic_maps_are_bitwise_the_default_up_to_the_original_length(scaling: rj.FrequencyMap) -> None:
    default = rj.rotary_frequencies(64, base=50_000.0)
    traced = jax.jit(lambda n: rj.rotary_frequencies(64, base=50_000.0, scaling=scaling, length=n))
    for length in (None, 0, 1, 13, 25, 26):
        got = rj.rotary_frequencies(64, base=50_000.0, scaling=scaling, length=length)
        np.testing.assert_array_equal(got.inv_freq, default.inv_freq)
        np.testing.assert_array_equal(got.inv_freq_low, default.inv_freq_low)
        if length is not None:
            np.testing.assert_array_equal(traced(length).inv_freq, default.inv_freq)


@for_each("original_length", [3, 26, 41, 49, 1000, 2048])
@for_each("dynamic", [rj.DynamicLinear, rj.DynamicNTK])
def test_the_scale_is_one_at_any_original_length(dynamic: type, original_length: int) -> None:
    # a compiler may divide by a constant with its rounded reciprocal, and 41 * (1 / 41) is not 1 in float32; it may also
    # fuse factor * (x - 1) + 1 so that what rounding hid comes back
    default = rj.rotary_frequencies(32)
    rest = {"factor": 6.02} if dynamic is rj.DynamicNTK else {}
    scaling = dynamic(original_length=original_length, **rest)
    traced = jax.jit(lambda n: rj.rotary_frequencies(32, scaling=scaling, length=n))
    for length in (original_length, original_length - 1):
        np.testing.assert_array_equal(traced(length).inv_freq, default.inv_freq)
        concrete = rj.rotary_frequencies(32, scaling=scaling, length=length)
        np.testing.assert_array_equal(whole(concrete), whole(default))


@for_each("scaling", DYNAMIC)
def test_dynamic_maps_act_from_one_past_the_original_length(scaling: rj.FrequencyMap) -> None:
    default = rj.rotary_frequencies(16)
    for length in (27, 28, 260):
        got = rj.rotary_frequencies(16, scaling=scaling, length=length)
        np.testing.assert_allclose(whole(got), naive_dynamic(scaling, 16, 10_000.0, length), rtol=1e-13)
        slowed = np.asarray(got.inv_freq) < np.asarray(default.inv_freq)
        first = isinstance(scaling, rj.DynamicLinear)  # NTK leaves the fastest frequency alone
        np.testing.assert_array_equal(slowed, [first] + [True] * 7)


def test_dynamic_maps_are_the_static_ones_by_the_ratio_of_lengths_whatever_came_before() -> None:
    for dynamic, static in ((rj.DynamicNTK, rj.NTK), (rj.DynamicLinear, rj.Linear)):
        got = rj.rotary_frequencies(16, scaling=dynamic(original_length=26), length=91)
        np.testing.assert_allclose(whole(got), whole(rj.rotary_frequencies(16, scaling=static(factor=91 / 26))), rtol=1e-14)

    # transformers keeps the frequencies of the longest input it has met; ours are a pure function of the length
    scaling = rj.DynamicNTK(factor=2.0, original_length=26)
    before = rj.rotary_frequencies(16, scaling=scaling, length=30)
    rj.rotary_frequencies(16, scaling=scaling, length=3000)
    np.testing.assert_array_equal(before.inv_freq, rj.rotary_frequencies(16, scaling=scaling, length=30).inv_freq)


@for_each("traced", [False, True])
@for_each("scaling", DYNAMIC)
def test_an_array_of_lengths_gives_each_its_frequencies(scaling: rj.FrequencyMap, traced: bool) -> None:
    lengths = jnp.array([[4, 26, 27], [100, 52, 1]])

    def run(n: jax.Array) -> rj.Frequencies:
        return rj.rotary_frequencies(8, scaling=scaling, length=n)

    got = (jax.jit(run) if traced else run)(lengths)
    assert got.inv_freq.shape == got.inv_freq_low.shape == (2, 3, 4)
    np.testing.assert_array_equal(got.attention_scale, np.ones((2, 3)))
    for where in np.ndindex(2, 3):
        expected = naive_dynamic(scaling, 8, 10_000.0, int(lengths[where]))
        np.testing.assert_allclose(got.inv_freq[where], expected, rtol=2e-6)


@for_each("scaling", [None, rj.Linear(factor=3.3), rj.NTK(factor=5.5), *DYNAMIC])
def test_traced_equals_concrete(scaling: rj.FrequencyMap | None) -> None:
    # one compiled program for all the draws: values that a program is given, and not shapes, are what differs here
    rng = np.random.default_rng(0)
    bases, lengths = np.exp(rng.uniform(np.log(2), np.log(1e6), 30)).astype(np.float32), rng.integers(1, 5000, 30)

    def run(base: float | jax.Array, length: int | jax.Array) -> jax.Array:
        return rj.rotary_frequencies(16, base=base, scaling=scaling, length=length).inv_freq

    both = jax.jit(run)
    by_base, by_length = jax.jit(lambda b: run(b, 77)), jax.jit(lambda n: run(50_000.0, n))
    for base, length in zip(bases, lengths, strict=True):
        np.testing.assert_allclose(both(base, length), run(float(base), int(length)), rtol=2e-6)
        np.testing.assert_allclose(by_base(base), run(float(base), 77), rtol=2e-6)
        np.testing.assert_allclose(by_length(length), run(50_000.0, int(length)), rtol=2e-6)


def test_vmap_over_bases_and_lengths_equals_a_loop() -> None:
    scaling = rj.DynamicNTK(factor=2.0, original_length=26)
    bases, lengths = jnp.array([5_000.0, 10_000.0, 50_000.0]), jnp.array([20, 40, 80])
    got = jax.vmap(lambda b, n: rj.rotary_frequencies(8, base=b, scaling=scaling, length=n))(bases, lengths)
    for i in range(3):
        alone = rj.rotary_frequencies(8, base=float(bases[i]), scaling=scaling, length=int(lengths[i]))
        np.testing.assert_allclose(got.inv_freq[i], alone.inv_freq, rtol=2e-6)


# rotary_dim 2 has one frequency, and the NTK exponent d/(d-2) would divide by zero


@for_each(
    ("scaling", "expected"),
    [
        (None, 1.0),
        (rj.NTK(factor=8.0), 1.0),
        (rj.DynamicNTK(factor=2.0, original_length=4), 1.0),
        (rj.Linear(factor=8.0), 1 / 8),
        (rj.DynamicLinear(original_length=4), 4 / 100),
    ],
)
def test_rotary_dim_two(scaling: rj.FrequencyMap | None, expected: float) -> None:
    def run(base: float | jax.Array, length: float | jax.Array) -> jax.Array:
        return rj.rotary_frequencies(2, base=base, scaling=scaling, length=length).inv_freq

    np.testing.assert_array_equal(run(10_000.0, 100), np.array([expected], np.float32))
    np.testing.assert_allclose(jax.jit(run)(10_000.0, 100), [expected], rtol=1e-6)
    by_base, by_length = jax.grad(lambda b, n: run(b, n)[0], argnums=(0, 1))(10_000.0, 100.0)
    assert float(by_base) == 0  # base^0
    assert float(by_length) == pytest.approx(-expected / 100 if isinstance(scaling, rj.DynamicLinear) else 0, rel=1e-5)


# gradients by the base


@for_each("scaling", [None, rj.Linear(factor=3.0), rj.NTK(factor=4.0), *DYNAMIC])
def test_the_gradient_by_the_base_is_the_derivative_of_the_power(scaling: rj.FrequencyMap | None) -> None:
    base, length = 500.0, 60

    def run(b: float | jax.Array) -> jax.Array:
        return rj.rotary_frequencies(8, base=b, scaling=scaling, length=length).inv_freq

    # every map multiplies base^(-2i/d) by something that does not know the base
    expected = -2 * np.arange(4) / 8 / base * np.asarray(run(base), np.float64)
    np.testing.assert_allclose(jax.jacrev(run)(base), expected, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(run)(base), expected, rtol=1e-5, atol=1e-12)


def test_the_gradient_by_the_base_against_finite_differences() -> None:
    def run(log_base: jax.Array) -> jax.Array:
        scaling = rj.DynamicNTK(factor=2.0, original_length=26)
        return rj.rotary_frequencies(8, base=jnp.exp(log_base), scaling=scaling, length=60).inv_freq

    check_grads(run, (math.log(500.0),), order=1, atol=1e-2, rtol=1e-2)


# errors

NEGATIVE_LENGTHS = [(-1, -1), (np.array([3, -5]), -5), (jnp.array([3, -5]), -5)]
DYNAMIC_KINDS = [rj.DynamicNTK, rj.DynamicLinear]


@for_each(
    ("make", "message"),
    [
        *((lambda n=n: rj.rotary_frequencies(n), rf"rotary_dim must be even and at least 2, got {n}:") for n in (0, 1, 3, 7, -2)),
        *((lambda b=b: rj.rotary_frequencies(8, base=b), rf"base must be positive, got {b}") for b in (0.0, -10_000.0, math.nan)),
        *(
            (
                lambda n=n, k=k: rj.rotary_frequencies(8, scaling=k(original_length=4), length=n),
                rf"must not be negative, got {least}",
            )
            for n, least in NEGATIVE_LENGTHS
            for k in DYNAMIC_KINDS
        ),
        *(
            (lambda f=f, k=k: k(factor=f), rf"{k.__name__} factor must be positive, got {f}")
            for f in (0.0, -2.0)
            for k in (rj.Linear, rj.NTK)
        ),
        *(
            (lambda f=f: rj.DynamicNTK(factor=f, original_length=26), rf"DynamicNTK factor must be positive, got {f}")
            for f in (0.0, -2.0)
        ),
        *(
            (lambda n=n, k=k: k(original_length=n), rf"{k.__name__} original_length must be at least 1, got {n}")
            for n in (0, -26)
            for k in DYNAMIC_KINDS
        ),
    ],
)
def test_what_cannot_be_is_an_error(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
