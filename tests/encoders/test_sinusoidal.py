"""The sinusoidal encoding against its formula in float64, the printed table, and the shift it was designed for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import rope_jax as rj
from looping import for_each

PROPERTY = settings(deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def naive_sinusoidal(
    positions: np.ndarray, dim: int, base: float = 10_000.0, order: str = "interleaved", spacing: str = "vaswani"
) -> np.ndarray:
    """The formula read aloud, one number at a time, in float64."""
    positions = np.asarray(positions, np.float64)
    out = np.zeros((*positions.shape, dim))
    for where in np.ndindex(positions.shape):
        sines, cosines = [], []
        for i in range(math.ceil(dim / 2)):
            exponent = 2 * i / dim if spacing == "vaswani" else i / max(dim // 2 - 1, 1)
            angle = positions[where] / base**exponent
            sines.append(math.sin(angle))
            if 2 * i + 1 < dim:
                cosines.append(math.cos(angle))
        if order == "interleaved":
            out[where][0::2] = sines
            out[where][1::2] = cosines
        else:
            out[where] = sines + cosines
    return out


def test_the_printed_table_of_four_positions() -> None:
    printed = [
        [0, 1, 0, 1],
        [0.8415, 0.5403, 0.0100, 0.99995],
        [0.9093, -0.4161, 0.0200, 0.99980],
        [0.1411, -0.9900, 0.0300, 0.99955],
    ]
    got = np.asarray(rj.sinusoidal(jnp.arange(4), 4))
    np.testing.assert_allclose(got[:, :3], np.array(printed)[:, :3], atol=5.1e-5, rtol=0)
    np.testing.assert_allclose(got[:, 3], np.array(printed)[:, 3], atol=5.1e-6, rtol=0)


@for_each("dim", [1, 2, 3, 4, 7, 16])
@for_each("order", ["interleaved", "concatenated"])
@for_each("spacing", ["vaswani", "tensor2tensor"])
@for_each("base", [10_000.0, 50.0])
def test_equals_the_formula(dim: int, order: str, spacing: str, base: float) -> None:
    positions = np.array([[0, 1, 2], [17, 63, 5]])
    got = rj.sinusoidal(jnp.asarray(positions), dim, base=base, order=order, spacing=spacing)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, naive_sinusoidal(positions, dim, base, order, spacing), atol=1e-5)


def test_odd_dims_orders_and_spacings() -> None:
    # sin(1), cos(1), sin(10000^(-2/3)), written out: the last sine stands alone
    angle = 10_000 ** (-2 / 3)
    np.testing.assert_allclose(rj.sinusoidal(jnp.array([1]), 3)[0], [0.84147098, 0.54030231, math.sin(angle)], atol=1e-7)
    concatenated = rj.sinusoidal(jnp.array([1]), 3, order="concatenated")[0]
    np.testing.assert_allclose(concatenated, [0.84147098, math.sin(angle), 0.54030231], atol=1e-7)

    positions = jnp.arange(6)
    interleaved = np.asarray(rj.sinusoidal(positions, 8))
    concatenated = np.asarray(rj.sinusoidal(positions, 8, order="concatenated"))
    np.testing.assert_array_equal(concatenated, interleaved[:, [0, 2, 4, 6, 1, 3, 5, 7]])

    # get_timing_signal_1d spaces geometrically from 1 to 1/max_timescale inclusive; the paper stops one step short
    got = np.asarray(rj.sinusoidal(jnp.array([1.0]), 6, base=100.0, spacing="tensor2tensor", order="concatenated"))[0]
    np.testing.assert_allclose(np.arcsin(got[:3]), [1, 0.1, 0.01], rtol=1e-6)


@for_each("dtype", ["int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32"])
def test_positions_of_any_dtype_give_float32_tables(dtype: str) -> None:
    # 101 and 127 are exact in every one of these; an angle in half precision would be off by 1e-2 or more
    positions = np.array([0, 1, 101, 127])
    got = rj.sinusoidal(jnp.asarray(positions, dtype), 8)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, naive_sinusoidal(positions, 8), atol=2e-5)


def test_positions_may_be_fractions_or_negative() -> None:
    positions = np.array([-3.0, -0.5, 0.25, 7.75])
    np.testing.assert_allclose(rj.sinusoidal(jnp.asarray(positions, jnp.float32), 6), naive_sinusoidal(positions, 6), atol=1e-6)


@PROPERTY
@given(m=st.integers(0, 200), n=st.integers(0, 200), dim=st.sampled_from([2, 6, 16]))
def test_dot_products_depend_on_the_distance_alone(m: int, n: int, dim: int) -> None:
    rows = np.asarray(rj.sinusoidal(jnp.array([m, n]), dim), np.float64)
    expected = sum(math.cos((m - n) / 10_000 ** (2 * i / dim)) for i in range(dim // 2))
    assert rows[0] @ rows[1] == pytest.approx(expected, abs=1e-4)


# the shift matrix


@PROPERTY
@given(
    offset=st.integers(-100, 100) | st.floats(-100, 100, width=32),
    position=st.integers(-100, 100),
    dim=st.sampled_from([2, 4, 10]),
    base=st.sampled_from([10_000.0, 50.0]),
)
def test_the_shift_moves_an_encoding(offset: float, position: int, dim: int, base: float) -> None:
    shift = np.asarray(rj.sinusoidal_shift(offset, dim, base=base), np.float64)
    before = np.asarray(rj.sinusoidal(jnp.array([position]), dim, base=base), np.float64)[0]
    np.testing.assert_allclose(shift @ before, naive_sinusoidal(position + offset, dim, base), atol=5e-5)


@for_each("offset", [1, -1, 12, 0.5])
def test_the_blocks_of_the_shift(offset: float) -> None:
    expected = np.zeros((6, 6))
    for i in range(3):
        b = offset / 10_000 ** (2 * i / 6)
        expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[math.cos(b), math.sin(b)], [-math.sin(b), math.cos(b)]]
    np.testing.assert_allclose(rj.sinusoidal_shift(offset, 6), expected, atol=1e-6)


def test_shifts_compose_and_undo_each_other() -> None:
    def shift(offset: float) -> np.ndarray:
        return np.asarray(rj.sinusoidal_shift(offset, 8), np.float64)

    np.testing.assert_array_equal(shift(0), np.eye(8))
    np.testing.assert_allclose(shift(7) @ shift(-7), np.eye(8), atol=1e-6)
    np.testing.assert_allclose(shift(3) @ shift(5), shift(8), atol=1e-6)
    np.testing.assert_allclose(shift(-5), shift(5).T, atol=1e-7)


# jit, vmap, grad


def test_jit_and_vmap_change_nothing() -> None:
    positions = jnp.array([[0, 3, 250], [-4, 17, 9]])
    eager = rj.sinusoidal(positions, 7)
    np.testing.assert_allclose(jax.jit(rj.sinusoidal, static_argnums=1)(positions, 7), eager, atol=1e-6)
    loop = jnp.stack([rj.sinusoidal(row, 7) for row in positions])
    np.testing.assert_allclose(jax.vmap(lambda p: rj.sinusoidal(p, 7))(positions), loop, atol=1e-6)

    offsets = jnp.array([-3.0, 0.0, 40.0])
    loop = jnp.stack([rj.sinusoidal_shift(offset, 4) for offset in (-3, 0, 40)])
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda o: rj.sinusoidal_shift(o, 4)))(offsets), loop, atol=1e-6)


def test_gradients_are_those_of_the_formulas() -> None:
    positions = np.array([0.0, 0.5, -2.25, 30.0])
    weights = np.random.default_rng(0).normal(size=(4, 6))

    def weighted(p: jax.Array) -> jax.Array:
        return jnp.sum(rj.sinusoidal(p, 6) * jnp.asarray(weights, jnp.float32))

    expected = np.zeros(4)
    for t, p in enumerate(positions):
        for i in range(3):
            w = 10_000 ** (-2 * i / 6)
            expected[t] += w * (math.cos(w * p) * weights[t, 2 * i] - math.sin(w * p) * weights[t, 2 * i + 1])
    got = jax.grad(weighted)(jnp.asarray(positions, jnp.float32))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    check_grads(lambda p: rj.sinusoidal(p, 5), (jnp.asarray(positions, jnp.float32),), order=1, atol=1e-2, rtol=1e-2)

    # d/dk T(k) at 0 is the generator: b [[0, 1], [-1, 0]] in each block
    generator = jax.jacfwd(lambda k: rj.sinusoidal_shift(k, 4))(0.0)
    expected = [[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 0.01], [0, 0, -0.01, 0]]
    np.testing.assert_allclose(generator, expected, atol=1e-7)
    reverse = jax.jacrev(lambda k: rj.sinusoidal_shift(k, 4))(1.5)
    np.testing.assert_allclose(reverse, np.array(expected) @ np.asarray(rj.sinusoidal_shift(1.5, 4)), atol=1e-6)


# errors


@for_each(
    ("make", "message"),
    [
        *(
            (lambda dim=dim, options=options: rj.sinusoidal(jnp.arange(3), dim, **options), message)
            for dim, options, message in [
                (0, {}, r"dim must be at least 1, got 0"),
                (-2, {}, r"dim must be at least 1, got -2"),
                (4, {"base": 0.0}, r"base must be positive, got 0.0"),
                (4, {"base": -10.0}, r"base must be positive, got -10.0"),
                (4, {"base": math.nan}, r"base must be positive, got nan"),
                (4, {"order": "sideways"}, r"order must be 'interleaved' or 'concatenated', got 'sideways'"),
                (4, {"spacing": "wide"}, r"spacing must be 'vaswani' or 'tensor2tensor', got 'wide'"),
            ]
        ),
        (lambda: rj.sinusoidal_shift(1, 5), r"needs an even dim, got 5"),
        (lambda: rj.sinusoidal_shift(1, 0), r"at least 2, got 0"),
        (lambda: rj.sinusoidal_shift(1, 4, base=-1.0), r"base must be positive, got -1.0"),
    ],
)
def test_errors_name_what_came(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
