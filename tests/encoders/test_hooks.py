"""The encoders as a model calls them: init, prepare, tables, the three hooks, requirements and retunable options."""

import dataclasses
import functools
import math
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from examples import DIMS, ENCODERS, MAPS, tables_of_first_layer
from looping import for_each
from rope_jax.study.serialization import options


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def naive_scores(
    q: np.ndarray, k: np.ndarray, q_positions: np.ndarray, k_positions: np.ndarray, inv_freq: np.ndarray, layout: str = "half"
) -> np.ndarray:
    """float64 [H, Tq, Tk] of q [Tq, H, D] and k [Tk, H, D]: each pair as a complex number rotated by its angle."""

    def rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        x, half = np.asarray(x, np.float64), x.shape[-1] // 2
        pairs = x[..., :half] + 1j * x[..., half:] if layout == "half" else x[..., 0::2] + 1j * x[..., 1::2]
        return pairs * np.exp(1j * np.asarray(positions, np.float64)[:, None, None] * inv_freq)

    return np.einsum("qhp,khp->hqk", rotated(q, q_positions).conj(), rotated(k, k_positions)).real


def default_inv_freq(rotary_dim: int = 8, base: float = 10_000.0) -> np.ndarray:
    return np.array([base ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def run(encoder: rj.Encoder, params: dict, x: jax.Array, q: jax.Array, k: jax.Array, positions: rj.Positions) -> tuple:
    """What a model does: it calls all hooks, always."""
    tables = tables_of_first_layer(encoder, params, positions)
    q, k = encoder.rotate(tables, q, k)
    return encoder.embed(tables, x, positions), q, k, encoder.bias(tables, q, k, positions)


COMPILED = jax.jit(run, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _rotated(
    encoder: rj.Encoder, params: dict, q: jax.Array, k: jax.Array, positions: rj.Positions
) -> tuple[jax.Array, jax.Array]:
    # compiled, because one program is much quicker than one an operation; eager and compiled are compared below
    return encoder.rotate(encoder.tables(encoder.prepare(params, positions.length, DIMS), positions), q, k)


def scores(encoder: rj.Encoder, params: dict, q: jax.Array, k: jax.Array, positions: rj.Positions) -> np.ndarray:
    """float64 [..., H, Tq, Tk]."""
    q, k = _rotated(encoder, params, q, k, positions)
    return np.einsum("...qhd,...khd->...hqk", np.asarray(q, np.float64), np.asarray(k, np.float64))


# what holds for every encoder


@for_each("encoder", [*ENCODERS, *MAPS])
def test_encoders_and_maps_are_frozen_hashable_values_of_plain_python(encoder: rj.Encoder | rj.FrequencyMap) -> None:
    again = dataclasses.replace(encoder)
    assert again == encoder
    assert again is not encoder
    assert hash(again) == hash(encoder)
    for field in dataclasses.fields(encoder):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(encoder, field.name, None)
    with pytest.raises((TypeError, ValueError)):  # keyword-only, but for the encoders of Compose
        type(encoder)(1)

    # an array in a default would start a device before any flag is read, and could not be hashed
    def plain(value: object) -> bool:
        if isinstance(value, (rj.FrequencyMap, rj.Encoder)):
            return all(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
        if isinstance(value, tuple):
            return all(map(plain, value))
        return value is None or type(value) in (bool, int, float, str)

    for field in dataclasses.fields(encoder):
        assert plain(getattr(encoder, field.name)), field.name
        assert field.default is dataclasses.MISSING or plain(field.default), field.name


def test_encoders_that_differ_are_not_equal() -> None:
    assert len(set(ENCODERS)) == len(ENCODERS)
    assert rj.RoPE(scaling=rj.NTK(factor=2.0)) != rj.RoPE(scaling=rj.Linear(factor=2.0))
    assert rj.RoPE(scaling=rj.NTK(factor=2.0)) == rj.RoPE(scaling=rj.NTK(factor=2.0))


@pytest.mark.slow
@for_each("encoder", ENCODERS)
def test_compiled_is_eager_and_narrow_inputs_are_computed_in_float32(encoder: rj.Encoder) -> None:
    """For examples with different positions and lengths. (That vmap is a loop: test_every_encoder.)"""
    params = encoder.init(jax.random.key(0), DIMS)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    arrays = normal(0, 2, 3, 16), normal(1, 2, 3, 2, 8), normal(2, 2, 3, 2, 8)
    positions = rj.Positions(query=jnp.array([[0, 1, 2], [5, 31, 63]]), length=jnp.array([3, 64]))
    eager = run(encoder, params, *arrays, positions)
    for a, b in zip(COMPILED(encoder, params, *arrays, positions), eager, strict=True):
        if b is None:
            assert a is None
        else:
            np.testing.assert_allclose(a, b, atol=1e-5)
    for dtype in ("bfloat16", "float16"):
        narrow = [a.astype(dtype) for a in arrays]
        got = run(encoder, params, *narrow, positions)
        wide = run(encoder, params, *(a.astype(jnp.float32) for a in narrow), positions)
        for name, a, b in zip(("x", "q", "k"), got, wide, strict=False):
            assert a.dtype == jnp.dtype(dtype), name
            ulp = 0.03 * max(1.0, float(jnp.max(jnp.abs(b))) / 4)  # of bfloat16 at 4
            np.testing.assert_allclose(a.astype(jnp.float32), b, atol=ulp, err_msg=name)
        assert (got[3] is None) == (wide[3] is None)
        assert got[3] is None or got[3].dtype == jnp.float32


@for_each(
    ("encoder", "expected"),
    [
        (rj.NoPE(), ""),
        (rj.Sinusoidal(), ""),
        (rj.Sinusoidal(base=50.0, order="concatenated"), "base=50.0, order='concatenated'"),
        (rj.Learned(max_length=128), "max_length=128"),
        (rj.Learned(max_length=128, init_scale=0.02), "max_length=128"),
        (rj.RoPE(), ""),
        (rj.RoPE(scaling=rj.NTK(factor=2.0), layout="interleaved"), "layout='interleaved', scaling=NTK(factor=2.0)"),
        (rj.RoPE(learn_base=True), "learn_base=True"),
    ],
)
def test_options_name_what_is_not_the_default(encoder: rj.Encoder, expected: str) -> None:
    assert options(encoder) == expected


@for_each(
    ("encoder", "fields", "needs_length"),
    [
        (rj.NoPE(), set(), False),
        (rj.Sinusoidal(), set(), False),
        (rj.Learned(max_length=8), set(), False),
        (rj.RoPE(), {"scaling", "base"}, False),
        (rj.RoPE(scaling=rj.NTK(factor=2.0)), {"scaling", "base"}, False),
        (rj.RoPE(scaling=rj.DynamicNTK(original_length=8)), {"scaling", "base"}, True),
        (rj.RoPE(scaling=rj.DynamicLinear(original_length=8)), {"scaling", "base"}, True),
        (rj.RoPE(learn_base=True), {"scaling"}, False),
        (rj.RoPE(learn_angles=True, scaling=rj.DynamicNTK(original_length=8)), {"scaling"}, True),
    ],
)
def test_what_may_change_on_a_trained_model(encoder: rj.Encoder, fields: set[str], needs_length: bool) -> None:
    assert encoder.retunable == fields
    assert encoder.requirements.length is needs_length


def another(value: object, declared: object) -> object:
    """A value of an option's type that differs from the given one."""
    if typing.get_origin(declared) is typing.Literal:
        return next(choice for choice in typing.get_args(declared) if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 1.5 * value + 0.25 if isinstance(value, float) else rj.Linear(factor=7.0)


@for_each("encoder", ENCODERS)
def test_retunable_options_change_no_parameter_and_act_through_prepare_alone(encoder: rj.Encoder) -> None:
    """Those of encoders within an encoder: test_compose and test_layers."""
    params = encoder.init(jax.random.key(0), DIMS)
    hints = typing.get_type_hints(type(encoder))
    for name in sorted(name for name in encoder.retunable if "[" not in name):
        variant = dataclasses.replace(encoder, **{name: another(getattr(encoder, name), hints[name])})
        jax.tree.map(np.testing.assert_array_equal, variant.init(jax.random.key(0), DIMS), params)
        # prepared by the variant and run by the original equals the variant throughout
        x, q, k = normal(0, 3, 16), normal(1, 3, 2, 8), normal(2, 3, 2, 8)
        positions = rj.Positions(query=7 * jnp.arange(3), length=15)
        tables = encoder.tables(variant.prepare(params, 15, DIMS), positions)
        tables = jax.tree.map(lambda x: x[0], tables) if encoder.requirements.per_layer else tables
        rotated = encoder.rotate(tables, q, k)
        mixed = (encoder.embed(tables, x, positions), *rotated, encoder.bias(tables, *rotated, positions))
        whole = run(variant, params, x, q, k, positions)
        for a, b in zip(mixed, whole, strict=True):
            np.testing.assert_array_equal(a, b) if b is not None else None
        plain = run(encoder, params, x, q, k, positions)
        assert any(a is not None and np.any(np.asarray(a != b)) for a, b in zip(whole, plain, strict=True)), name


# NoPE and Sinusoidal


@for_each("encoder", [rj.NoPE(), rj.Encoder()])
def test_nope_is_the_identity_in_all_hooks(encoder: rj.Encoder) -> None:
    assert encoder.init(jax.random.key(0), DIMS) == {}
    rj.check_requirements(encoder, DIMS, max_position=10**9, position_axes=7, real_positions=True)
    x, q, k = normal(0, 3, 16), normal(1, 3, 2, 8), normal(2, 5, 2, 8)
    positions = rj.Positions(query=jnp.arange(3), key=jnp.arange(5), length=5)
    got = run(encoder, {}, x, q, k, positions)
    assert got[0] is x
    assert got[1] is q
    assert got[2] is k
    assert got[3] is None


@for_each("changed", [{}, {"base": 50.0}, {"order": "concatenated"}, {"spacing": "tensor2tensor"}])
@for_each("query", [[0, 1, 2], [[0, 1, 2], [7, 3, 100]], [0.5, -1.25, 9.0]])
def test_sinusoidal_adds_its_function_of_the_positions(changed: dict, query: list) -> None:
    encoder, x, query = rj.Sinusoidal(**changed), normal(0, 2, 3, 16), jnp.array(query)
    positions = rj.Positions(query=query)
    assert encoder.init(jax.random.key(0), DIMS) == {}
    q, k = normal(1, 3, 2, 8), normal(2, 3, 2, 8)
    got = run(encoder, {}, x, q, k, positions)
    np.testing.assert_array_equal(got[0], np.asarray(x) + np.asarray(rj.sinusoidal(query, 16, **changed)))
    assert got[1] is q
    assert got[2] is k
    assert got[3] is None


# RoPE


@for_each("layout", ["half", "interleaved"])
@for_each("scaling", [None, rj.NTK(factor=3.0), rj.DynamicNTK(original_length=4)])
@for_each("rotary_fraction", [1.0, 0.5])
def test_rope_is_its_pure_functions(layout: str, scaling: rj.FrequencyMap | None, rotary_fraction: float) -> None:
    encoder = rj.RoPE(base=500.0, layout=layout, rotary_fraction=rotary_fraction, scaling=scaling)
    query, x, q, k = jnp.array([2, 5, 11]), normal(0, 3, 16), normal(1, 3, 2, 8), normal(2, 3, 2, 8)
    got = run(encoder, encoder.init(jax.random.key(0), DIMS), x, q, k, rj.Positions(query=query, length=12))
    frequencies = rj.rotary_frequencies(int(8 * rotary_fraction), base=500.0, scaling=scaling, length=12)
    cos, sin = rj.rotary_tables(frequencies, query)
    assert encoder.init(jax.random.key(0), DIMS) == {}
    assert got[0] is x
    np.testing.assert_array_equal(got[1], rj.rotate(q, cos, sin, layout=layout))
    np.testing.assert_array_equal(got[2], rj.rotate(k, cos, sin, layout=layout))
    assert got[3] is None
    for mine, theirs in zip(encoder.frequencies(8, length=12), frequencies, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@for_each("layout", ["half", "interleaved"])
def test_rope_scores_are_the_formula(layout: str) -> None:
    encoder, q, k = rj.RoPE(layout=layout), normal(1, 4, 2, 8), normal(2, 4, 2, 8)
    query = np.array([0, 3, 8, 40])
    got = scores(encoder, {}, q, k, rj.Positions(query=jnp.asarray(query)))
    np.testing.assert_allclose(got, naive_scores(q, k, query, query, default_inv_freq(), layout), atol=1e-4)
    moved = scores(encoder, {}, q, k, rj.Positions(query=jnp.asarray(query + 100)))
    np.testing.assert_allclose(moved, got, atol=2e-4)


def test_head_fraction_rotates_the_first_heads_only() -> None:
    dims, q, k = rj.Dims(width=32, num_heads=4, head_dim=8), normal(1, 5, 4, 8), normal(2, 5, 4, 8)
    positions = rj.Positions(query=jnp.arange(3, 8))
    whole, part = rj.RoPE(), rj.RoPE(head_fraction=0.5)
    rotated = whole.rotate(whole.tables(whole.prepare({}, None, dims), positions), q, k)
    got = part.rotate(part.tables(part.prepare({}, None, dims), positions), q, k)
    for mine, all_turned, before in zip(got, rotated, (q, k), strict=True):
        np.testing.assert_array_equal(mine[:, :2], all_turned[:, :2])
        np.testing.assert_array_equal(mine[:, 2:], before[:, 2:])
        assert np.all(np.any(np.asarray(mine[:, :2] != before[:, :2]), axis=-1))


def test_rotary_fraction_rotates_the_first_features_with_their_denominator() -> None:
    # GPT-NeoX: theta_i = base^(-2i/R), with R the rotated features and not the head dim
    encoder, q, k = rj.RoPE(rotary_fraction=0.5), normal(1, 4, 2, 8), normal(2, 4, 2, 8)
    tables = encoder.tables(encoder.prepare({}, None, DIMS), rj.Positions(query=jnp.arange(4)))
    got_q, got_k = (np.asarray(a, np.float64) for a in encoder.rotate(tables, q, k))
    np.testing.assert_array_equal(got_q[..., 4:], q[..., 4:])
    np.testing.assert_array_equal(got_k[..., 4:], k[..., 4:])
    expected = naive_scores(q[..., :4], k[..., :4], np.arange(4), np.arange(4), default_inv_freq(4))
    np.testing.assert_allclose(np.einsum("qhd,khd->hqk", got_q[..., :4], got_k[..., :4]), expected, atol=1e-5)


@for_each(
    "encoder",
    [
        rj.RoPE(),
        rj.RoPE(layout="interleaved", rotary_fraction=0.5, head_fraction=0.5),
        rj.RoPE(scaling=rj.DynamicNTK(original_length=4)),
    ],
)
def test_cached_decoding_equals_the_full_pass(encoder: rj.RoPE) -> None:
    q, k = normal(1, 2, 6, 2, 8), normal(2, 2, 6, 2, 8)
    # the second example is padded on the left, so that a row's number is not its position
    positions, length = jnp.array([[0, 1, 2, 3, 4, 5], [-2, -1, 0, 1, 2, 3]]), jnp.array([6, 4])
    full = scores(encoder, {}, q, k, rj.Positions(query=positions, length=length))
    for t in (0, 4):
        now = rj.Positions(query=positions[:, t : t + 1], key=positions[:, : t + 1], length=length)
        row = scores(encoder, {}, q[:, t : t + 1], k[:, : t + 1], now)
        np.testing.assert_allclose(row[..., 0, :], full[..., t, : t + 1], atol=1e-5)


def test_keys_may_have_other_positions() -> None:
    q, k = normal(1, 2, 2, 8), normal(2, 3, 2, 8)
    query, key = np.array([7, 2]), np.array([0, 30, 4])
    got = scores(rj.RoPE(), {}, q, k, rj.Positions(query=jnp.asarray(query), key=jnp.asarray(key)))
    np.testing.assert_allclose(got, naive_scores(q, k, query, key, default_inv_freq()), atol=1e-4)


def test_positions_name_their_keys() -> None:
    query, key = jnp.arange(3), jnp.arange(5)
    assert rj.Positions(query=query).keys is query
    assert rj.Positions(query=query, key=key).keys is key
    doubled = jax.tree.map(lambda a: 2 * a, rj.Positions(query=query, key=key, length=jnp.array(4)))
    assert isinstance(doubled, rj.Positions)
    assert (doubled.query.tolist(), doubled.key.tolist(), int(doubled.length)) == ([0, 2, 4], [0, 2, 4, 6, 8], 8)


@for_each("shared", [True, False])
@for_each("scaling", [rj.DynamicNTK(factor=2.0, original_length=6), rj.DynamicLinear(original_length=6)])
def test_each_example_is_scaled_by_its_length(scaling: rj.FrequencyMap, shared: bool) -> None:
    encoder, q, k = rj.RoPE(scaling=scaling), normal(1, 3, 5, 2, 8), normal(2, 3, 5, 2, 8)
    lengths, one = [4, 9, 20], jnp.arange(5)
    query = one if shared else jnp.stack([one] * 3)
    got = scores(encoder, {}, q, k, rj.Positions(query=query, length=jnp.array(lengths)))
    for b, length in enumerate(lengths):
        alone = scores(encoder, {}, q[b], k[b], rj.Positions(query=one, length=length))
        np.testing.assert_allclose(got[b], alone, atol=1e-5)
        ratio = max(length, 6) / 6
        if isinstance(scaling, rj.DynamicLinear):
            inv_freq = default_inv_freq() / ratio
        else:
            inv_freq = default_inv_freq(base=10_000.0 * (2.0 * ratio - 1.0) ** (8 / 6))
        np.testing.assert_allclose(got[b], naive_scores(q[b], k[b], one, one, inv_freq), atol=2e-5)


def test_static_maps_do_not_look_at_the_length() -> None:
    # so that all such variants share one compiled program, the shapes of their frequencies must not follow the batch
    for scaling in (None, rj.Linear(factor=2.0), rj.NTK(factor=2.0)):
        encoder = rj.RoPE(scaling=scaling)
        with_length = encoder.prepare({}, jnp.array([3, 900]), DIMS)
        for a, b in zip(with_length, encoder.prepare({}, None, DIMS), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.shape == b.shape


def test_frequencies_go_through_prepare() -> None:
    """A subclass that overrides `prepare` alone changes what the model and a user's code get."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Slower(rj.RoPE):
        divisor: float = 3.0

        def prepare(self, params: dict, length: int | jax.Array | None, dims: rj.Dims) -> rj.Frequencies:
            frequencies = super().prepare(params, length, dims)
            return frequencies._replace(inv_freq=frequencies.inv_freq / self.divisor)

    encoder = Slower(scaling=rj.DynamicNTK(original_length=4))
    plain = rj.RoPE(scaling=encoder.scaling)
    for length in (None, 3, 20):
        np.testing.assert_array_equal(encoder.frequencies(8, length=length).inv_freq, plain.frequencies(8, length=length)[0] / 3)
        for a, b in zip(encoder.frequencies(8, length=length), encoder.prepare({}, length, DIMS), strict=True):
            np.testing.assert_array_equal(a, b)


# learned frequencies


def rotated_sum(encoder: rj.RoPE, params: dict, length: int | None = None) -> jax.Array:
    """A scalar that depends on every frequency."""
    positions, x = rj.Positions(query=jnp.array([1, 4, 9])), normal(3, 3, 2, 8)
    q, _ = encoder.rotate(encoder.tables(encoder.prepare(params, length, DIMS), positions), x, x)
    return jnp.sum(q * normal(4, 3, 2, 8))


def naive_rotated_sum(inv_freq: np.ndarray) -> float:
    x, weights = (np.asarray(normal(seed, 3, 2, 8), np.float64) for seed in (3, 4))
    rotated = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * np.array([1, 4, 9])[:, None, None] * inv_freq)
    return float(np.sum(rotated.real * weights[..., :4] + rotated.imag * weights[..., 4:]))


def central_difference(f: object, x: float, step: float = 1e-5) -> float:
    return (f(x + step) - f(x - step)) / (2 * step)


@for_each("scaling", [None, rj.Linear(factor=2.0), rj.NTK(factor=2.0)])
def test_a_learned_base(scaling: rj.FrequencyMap | None) -> None:
    encoder = rj.RoPE(base=500.0, learn_base=True, scaling=scaling)
    params = encoder.init(jax.random.key(0), DIMS)
    assert set(params) == {"log_base"}
    assert params["log_base"].shape == ()
    np.testing.assert_allclose(params["log_base"], math.log(500.0), rtol=1e-7)

    # moving log_base is moving the base
    for base in (500.0, 321.0, 40_000.0):
        moved = {"log_base": jnp.log(jnp.asarray(base, jnp.float32))}
        expected = rj.RoPE(base=base, scaling=scaling).frequencies(8).inv_freq
        np.testing.assert_allclose(encoder.prepare(moved, None, DIMS).inv_freq, expected, rtol=2e-6)
        traced = jax.jit(lambda p: encoder.prepare(p, None, DIMS).inv_freq)(moved)
        np.testing.assert_allclose(traced, expected, rtol=2e-6)

    def in_float64(log_base: float) -> float:
        base = math.exp(log_base) * (2.0 ** (8 / 6) if isinstance(scaling, rj.NTK) else 1)
        return naive_rotated_sum(default_inv_freq(base=base) / (2 if isinstance(scaling, rj.Linear) else 1))

    gradient = jax.grad(lambda p: rotated_sum(encoder, p))(params)["log_base"]
    expected = central_difference(in_float64, math.log(500.0))
    assert abs(expected) > 0.01
    assert float(gradient) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@for_each("scaling", [None, rj.Linear(factor=2.0), rj.NTK(factor=2.0)])
def test_learned_angles(scaling: rj.FrequencyMap | None) -> None:
    encoder = rj.RoPE(learn_angles=True, scaling=scaling)
    params = encoder.init(jax.random.key(0), DIMS)
    assert set(params) == {"inv_freq"}
    np.testing.assert_array_equal(params["inv_freq"], default_inv_freq().astype(np.float32))

    # training has moved them; the map then applies to what was learned
    learned = np.array([0.9, 0.3, 0.02, 0.004])
    stretch = {type(None): np.ones(4), rj.Linear: np.full(4, 2.0), rj.NTK: 2.0 ** (np.arange(4) / 3)}[type(scaling)]
    moved = {"inv_freq": jnp.asarray(learned, jnp.float32)}
    for prepare in (encoder.prepare, jax.jit(encoder.prepare, static_argnums=(1, 2))):
        np.testing.assert_allclose(prepare(moved, None, DIMS).inv_freq, learned / stretch, rtol=2e-6)

    gradient = jax.grad(lambda p: rotated_sum(encoder, p))(moved)["inv_freq"]
    for i in range(4):

        def in_float64(value: float, i: int = i) -> float:
            return naive_rotated_sum(np.where(np.arange(4) == i, value, learned) / stretch)

        expected = central_difference(in_float64, learned[i])
        assert abs(expected) > 0.01
        assert float(gradient[i]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@for_each("learn", ["learn_base", "learn_angles"])
def test_dynamic_scaling_of_learned_frequencies(learn: str) -> None:
    encoder = rj.RoPE(scaling=rj.DynamicNTK(original_length=4), **{learn: True})
    params = encoder.init(jax.random.key(0), DIMS)
    got = jax.jit(lambda p, n: encoder.prepare(p, n, DIMS).inv_freq)(params, jnp.array([3, 4, 10]))
    expected = [default_inv_freq(), default_inv_freq(), default_inv_freq(base=10_000.0 * 2.5 ** (8 / 6))]
    np.testing.assert_allclose(got, expected, rtol=2e-6)
    assert np.all(np.isfinite(jax.tree.leaves(jax.grad(lambda p: rotated_sum(encoder, p, 10))(params))[0]))


def test_a_learned_base_of_a_single_pair_has_a_gradient_of_zero_and_not_nan() -> None:
    dims = rj.Dims(width=2, num_heads=1, head_dim=2)
    for scaling in (None, rj.NTK(factor=4.0), rj.DynamicNTK(original_length=4)):
        encoder = rj.RoPE(learn_base=True, scaling=scaling)
        gradient = jax.grad(lambda p, e=encoder: e.prepare(p, 9, dims).inv_freq[0])(encoder.init(jax.random.key(0), dims))
        assert float(gradient["log_base"]) == 0


# errors


def required(encoder: rj.Encoder, dims: rj.Dims = DIMS) -> None:
    rj.check_requirements(encoder, dims, max_position=9)


@for_each(
    ("make", "message"),
    [
        (lambda: rj.Sinusoidal(base=-1.0), r"base must be positive, got -1.0"),
        (lambda: rj.Sinusoidal(order="sideways"), r"order must be 'interleaved' or 'concatenated', got 'sideways'"),
        (lambda: rj.Sinusoidal(spacing="wide"), r"spacing must be 'vaswani' or 'tensor2tensor', got 'wide'"),
        (lambda: rj.RoPE(base=0.0), r"RoPE base must be positive, got 0.0"),
        (lambda: rj.RoPE(base=-5.0), r"RoPE base must be positive, got -5.0"),
        (lambda: rj.RoPE(layout="pairs"), r"RoPE layout must be 'half'.* or 'interleaved'.*, got 'pairs'"),
        (lambda: rj.RoPE(base=math.inf), r"RoPE base must be finite, got inf"),
        (lambda: rj.RoPE(base="10000"), r"RoPE base must be .*, got '10000'"),
        (lambda: rj.RoPE(rotary_fraction=0.0), r"RoPE rotary_fraction must be above 0 and at most 1, got 0.0"),
        (lambda: rj.RoPE(rotary_fraction=1.5), r"RoPE rotary_fraction must be above 0 and at most 1, got 1.5"),
        (lambda: rj.RoPE(head_fraction=-0.5), r"RoPE head_fraction must be above 0 and at most 1, got -0.5"),
        (lambda: rj.RoPE(head_fraction=2.0), r"RoPE head_fraction must be above 0 and at most 1, got 2.0"),
        (lambda: rj.RoPE(scaling=2.0), r"RoPE scaling must be .*, got 2.0"),
        (lambda: rj.RoPE(scaling=rj.NTK), r"RoPE scaling must be .*, got <class '.*NTK'>"),  # the class, not an object of it
        (lambda: rj.RoPE(learn_base=True, learn_angles=True), r"cannot learn both the base and the angles"),
        (
            lambda: required(rj.RoPE(head_fraction=0.25)),
            r"RoPE head_fraction 0.25 of 2 heads gives no head; use at least 0.5",
        ),
    ],
)
def test_impossible_options_are_errors_before_anything_is_traced(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@for_each(("head_dim", "fraction", "width"), [(8, 0.4, 3), (12, 0.25, 3), (8, 0.1, 0), (7, 1.0, 7), (10, 0.19, 1)])
def test_an_odd_rotated_width_names_both_numbers(head_dim: int, fraction: float, width: int) -> None:
    encoder, dims = rj.RoPE(rotary_fraction=fraction), rj.Dims(width=2 * head_dim, num_heads=2, head_dim=head_dim)
    message = re.escape(f"int(head_dim {head_dim} * rotary_fraction {fraction}) = {width}")
    for call in (
        lambda: required(encoder, dims),
        lambda: encoder.frequencies(head_dim),
        lambda: encoder.prepare({}, None, dims),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_rotated_width_is_truncated_and_the_advice_for_a_head_fraction_can_be_followed() -> None:
    assert rj.RoPE(rotary_fraction=0.6).rotary_dim(8) == 4  # 4.8
    assert rj.RoPE(rotary_fraction=0.25).rotary_dim(64) == 16
    assert rj.RoPE().rotary_dim(8) == 8
    required(rj.RoPE(head_fraction=0.5))
    for num_heads in (2, 3, 6, 7, 12, 49):
        dims = rj.Dims(width=8 * num_heads, num_heads=num_heads, head_dim=8)
        with pytest.raises(ValueError, match="gives no head") as error:
            required(rj.RoPE(head_fraction=0.01), dims)
        advised = float(re.search(r"use at least ([\d.]+)", str(error.value))[1])
        required(rj.RoPE(head_fraction=advised), dims)
