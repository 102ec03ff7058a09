"""Rotation: three forms of one thing, transformers' numbers, and the properties that make it relative."""

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
LAYOUTS = ["half", "interleaved"]
# one compiled program a shape is much quicker than one an operation; that both agree is a test below
TABLES = jax.jit(rj.rotary_tables, static_argnames=("sections", "arrangement", "exact"))
ROTATE = jax.jit(rj.rotate, static_argnames=("layout", "inverse"))
MATRIX = jax.jit(rj.rotation_matrix, static_argnames="layout")


def naive_frequencies(rotary_dim: int, base: float = 10_000.0) -> np.ndarray:
    return np.array([base ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def naive_angles(positions: np.ndarray, rotary_dim: int, base: float = 10_000.0) -> np.ndarray:
    """float64 [..., T, R/2]."""
    return np.asarray(positions, np.float64)[..., None] * naive_frequencies(rotary_dim, base)


def naive_rotate(x: np.ndarray, angles: np.ndarray, layout: str) -> np.ndarray:
    """x [T, H, D] rotated pair by pair by angles [T, R/2], in float64."""
    x = np.asarray(x, np.float64)
    out = x.copy()
    pairs = angles.shape[-1]
    for i in range(pairs):
        first, second = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        for t in range(x.shape[0]):
            a, b, c, s = x[t, :, first], x[t, :, second], math.cos(angles[t, i]), math.sin(angles[t, i])
            out[t, :, first] = a * c - b * s
            out[t, :, second] = b * c + a * s
    return out


def pairs_of(x: np.ndarray, layout: str) -> np.ndarray:
    """[..., R] -> [..., R/2, 2]."""
    half = x.shape[-1] // 2
    return np.stack([x[..., :half], x[..., half:]], -1) if layout == "half" else x.reshape(*x.shape[:-1], half, 2)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tables_at(positions: list | np.ndarray, rotary_dim: int, **options: object) -> tuple[jax.Array, jax.Array]:
    return TABLES(rj.rotary_frequencies(rotary_dim), jnp.asarray(positions), **options)


# outside values


@for_each("case", FIXTURE["rotate"])
def test_rotation_equals_transformers(case: dict) -> None:
    frequencies = rj.rotary_frequencies(case["head_dim"], base=case["base"])
    cos, sin = rj.rotary_tables(frequencies, jnp.array(case["positions"]))
    # theirs is [H, T, D], ours [T, H, D]
    x, y = (np.array(case[name], np.float32).transpose(1, 0, 2) for name in ("x_heads_first", "y_heads_first"))
    np.testing.assert_allclose(rj.rotate(jnp.asarray(x), cos, sin, layout=case["layout"]), y, atol=1e-5)


@for_each("case", FIXTURE["mrope"])
def test_sections_equal_transformers(case: dict) -> None:
    frequencies, sections = rj.rotary_frequencies(case["head_dim"]), tuple(case["sections"])
    positions = jnp.array(case["positions_axes_first"])
    cos, _ = rj.rotary_tables(frequencies, positions, sections=sections, arrangement=case["layout"])
    np.testing.assert_allclose(cos, case["cos_first_half"], atol=1e-5)


WORKED = [
    ([1, 0, 0.5, 0.2], [0.540302, 0.841471, 0.497975, 0.204990]),
    ([0, 1, 0.1, 0.3], [-0.841471, 0.540302, 0.096995, 0.300985]),
    ([0.5, 0.5, 0.2, 0.1], [-0.150584, 0.690887, 0.198990, 0.101995]),
]


@for_each(("x", "expected"), WORKED)
def test_the_worked_example(x: list[float], expected: list[float]) -> None:
    cos, sin = tables_at([1], 4)
    column = jnp.array(x)[None, None, :]
    got = rj.rotate(column, cos, sin, layout="interleaved")
    np.testing.assert_allclose(got[0, 0], expected, atol=1e-6)
    np.testing.assert_allclose(rj.rotate(got, cos, sin, layout="interleaved", inverse=True), column, atol=1e-6)
    matrix = np.asarray(rj.rotation_matrix(1, rj.rotary_frequencies(4)), np.float64)
    np.testing.assert_allclose(matrix @ np.array(x), expected, atol=1e-6)
    np.testing.assert_allclose(matrix.T @ np.array(expected), x, atol=1e-6)


# three forms of one rotation


@PROPERTY
@given(position=st.integers(-500, 500), rotary_dim=st.sampled_from([2, 4, 16]), seed=st.integers(0, 99))
def test_matrix_complex_and_real_forms_agree(position: int, rotary_dim: int, seed: int) -> None:
    x = normal(seed, 1, 3, rotary_dim)
    cos, sin = tables_at([position], rotary_dim)
    real = ROTATE(jnp.asarray(x), cos, sin, layout="interleaved")[0]

    wide = x[0].astype(np.float64)
    numbers = (wide[:, 0::2] + 1j * wide[:, 1::2]) * np.exp(1j * position * naive_frequencies(rotary_dim))
    as_complex = np.stack([numbers.real, numbers.imag], axis=-1).reshape(3, rotary_dim)

    matrix = np.asarray(MATRIX(position, rj.rotary_frequencies(rotary_dim)), np.float64)
    as_matrix = wide @ matrix.T

    np.testing.assert_allclose(real, as_complex, atol=3e-4)  # 500 * 2^-24 radians on numbers of up to about 4
    np.testing.assert_allclose(real, as_matrix, atol=1e-5)  # the same float32 angles: only the products differ


@for_each("layout", LAYOUTS)
@for_each("inverse", [False, True])
@for_each("rotary_dim", [2, 6, 8])
def test_rotate_equals_the_formula(layout: str, inverse: bool, rotary_dim: int) -> None:
    x, positions = normal(0, 5, 2, 8), np.array([0, 1, -7, 40, 3])
    cos, sin = tables_at(positions, rotary_dim)
    got = ROTATE(jnp.asarray(x), cos, sin, layout=layout, inverse=inverse)
    angles = naive_angles(positions, rotary_dim) * (-1 if inverse else 1)
    np.testing.assert_allclose(got, naive_rotate(x, angles, layout), atol=2e-5)
    np.testing.assert_array_equal(got[..., rotary_dim:], x[..., rotary_dim:])  # the rest passes through untouched


@for_each("layout", LAYOUTS)
@for_each("position", [0, 3, -11, 2.5])
def test_the_matrix_does_what_rotate_does(layout: str, position: float) -> None:
    x = normal(1, 1, 4, 6)
    frequencies = rj.rotary_frequencies(6)
    cos, sin = rj.rotary_tables(frequencies, jnp.array([position]))
    matrix = np.asarray(rj.rotation_matrix(position, frequencies, layout=layout), np.float64)
    np.testing.assert_allclose(ROTATE(jnp.asarray(x), cos, sin, layout=layout)[0], x[0] @ matrix.T, atol=2e-6)


def test_the_blocks_of_the_matrix() -> None:
    expected = np.zeros((4, 4))
    for i, angle in enumerate([3.0, 0.03]):
        expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    np.testing.assert_allclose(rj.rotation_matrix(3, rj.rotary_frequencies(4)), expected, atol=1e-6)
    across = expected[np.ix_([0, 2, 1, 3], [0, 2, 1, 3])]
    np.testing.assert_allclose(rj.rotation_matrix(3, rj.rotary_frequencies(4), layout="half"), across, atol=1e-6)


# algebra


@PROPERTY
@given(m=st.integers(-300, 300), n=st.integers(-300, 300), layout=st.sampled_from(LAYOUTS))
def test_rotations_form_a_group(m: int, n: int, layout: str) -> None:
    def matrix(position: int) -> np.ndarray:
        return np.asarray(MATRIX(position, rj.rotary_frequencies(8), layout=layout), np.float64)

    np.testing.assert_allclose(matrix(m).T @ matrix(n), matrix(n - m), atol=1e-4)
    np.testing.assert_allclose(matrix(m).T, matrix(-m), atol=1e-7)
    np.testing.assert_allclose(matrix(m).T @ matrix(m), np.eye(8), atol=1e-6)


@PROPERTY
@given(
    query=st.integers(0, 2000),
    distance=st.integers(-300, 300),
    shift=st.integers(-1000, 100_000),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 99),
)
def test_scores_depend_on_key_minus_query_alone(query: int, distance: int, shift: int, layout: str, seed: int) -> None:
    vectors = jnp.asarray(normal(seed, 2, 1, 16))  # q and k, on the time axis

    def score(position: int) -> float:
        # exact angles, so that the tolerance tells of the identity and not of float32 at far positions
        cos, sin = tables_at([position, position + distance], 16, exact=True)
        q, k = np.asarray(ROTATE(vectors, cos, sin, layout=layout), np.float64)[:, 0]
        return float(q @ k)

    q, k = np.asarray(vectors, np.float64)[:, 0]
    expected = naive_rotate(k[None, None], naive_angles(np.array([distance]), 16), layout)[0, 0]
    assert score(query) == pytest.approx(q @ expected, abs=5e-5)  # q^T R_{n-m} k, and not its mirror image
    assert score(query + shift) == pytest.approx(q @ expected, abs=5e-5)


@PROPERTY
@given(position=st.integers(-(10**6), 10**6), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 99))
def test_each_pair_keeps_its_norm(position: int, layout: str, seed: int) -> None:
    x = normal(seed, 1, 2, 12)
    cos, sin = tables_at([position], 12)
    got = np.asarray(ROTATE(jnp.asarray(x), cos, sin, layout=layout), np.float64)
    norms = np.linalg.norm(pairs_of(x.astype(np.float64), layout), axis=-1)
    np.testing.assert_allclose(np.linalg.norm(pairs_of(got, layout), axis=-1), norms, rtol=1e-6)


@for_each("exact", [False, True])
@for_each("layout", LAYOUTS)
@for_each("dtype", ["float32", "bfloat16", "float16"])
def test_position_zero_is_the_identity(exact: bool, layout: str, dtype: str) -> None:
    x = jnp.asarray(normal(2, 3, 2, 8), dtype)
    cos, sin = tables_at([0, 0, 0], 8, exact=exact)
    np.testing.assert_array_equal(ROTATE(x, cos, sin, layout=layout), x)
    np.testing.assert_array_equal(rj.rotation_matrix(0, rj.rotary_frequencies(8), layout=layout), np.eye(8))


@for_each("inverse", [False, True])
@for_each("rotary_dim", [6, 8])
def test_the_layouts_are_one_up_to_the_known_permutation(inverse: bool, rotary_dim: int) -> None:
    x = jnp.asarray(normal(3, 4, 2, 8))
    cos, sin = tables_at([0, 5, 17, 300], rotary_dim)
    perm = np.array([*range(0, rotary_dim, 2), *range(1, rotary_dim, 2), *range(rotary_dim, 8)])
    interleaved = ROTATE(x, cos, sin, layout="interleaved", inverse=inverse)
    half = ROTATE(x[..., perm], cos, sin, layout="half", inverse=inverse)
    np.testing.assert_allclose(interleaved[..., perm], half, atol=1e-6)


@for_each("layout", LAYOUTS)
def test_inverse_undoes_and_equals_the_negative_position(layout: str) -> None:
    x = jnp.asarray(normal(4, 3, 2, 8))
    cos, sin = tables_at([1, 20, 400], 6)
    back = ROTATE(ROTATE(x, cos, sin, layout=layout), cos, sin, layout=layout, inverse=True)
    np.testing.assert_allclose(back, x, atol=2e-6)
    negative = ROTATE(x, *tables_at([-1, -20, -400], 6), layout=layout)
    np.testing.assert_allclose(ROTATE(x, cos, sin, layout=layout, inverse=True), negative, atol=1e-6)


# tables


def test_tables_have_a_row_for_each_position_of_each_example() -> None:
    positions = np.array([[0, 1, 2], [7, -3, 50]])
    cos, sin = tables_at(positions, 8)
    assert cos.dtype == sin.dtype == jnp.float32
    np.testing.assert_allclose(cos, np.cos(naive_angles(positions, 8)), atol=1e-5)
    np.testing.assert_allclose(sin, np.sin(naive_angles(positions, 8)), atol=1e-5)


@for_each(
    ("dtype", "exact"),
    [
        *((dtype, False) for dtype in ("int8", "uint8", "int16", "uint32", "float16", "bfloat16")),
        ("uint8", True),
        ("float16", True),
    ],
)
def test_tables_take_positions_of_any_dtype(dtype: str, exact: bool) -> None:
    positions = np.array([0, 1, 101, 127])  # exact in all of these
    cos, sin = tables_at(jnp.asarray(positions, dtype), 16, exact=exact)
    assert cos.dtype == sin.dtype == jnp.float32
    np.testing.assert_allclose(cos, np.cos(naive_angles(positions, 16)), atol=2e-5)
    np.testing.assert_allclose(sin, np.sin(naive_angles(positions, 16)), atol=2e-5)


@for_each(
    ("positions", "tolerance"),
    [
        (np.arange(8), 1e-6),
        (np.arange(0, 1024, 7), 1e-4),
        (np.arange(0, 8192, 61), 5e-4),  # 8191 * 2^-25 for the frequency and half an ulp, 2^-12, for the product
        (np.linspace(-40, 40, 33), 5e-6),
    ],
)
def test_plain_tables_keep_float32_accuracy(positions: np.ndarray, tolerance: float) -> None:
    dtype = np.int32 if positions.dtype.kind == "i" else np.float32
    cos, sin = tables_at(positions.astype(dtype), 128)
    angles = naive_angles(positions.astype(dtype), 128)
    np.testing.assert_allclose(cos, np.cos(angles), atol=tolerance, rtol=0)
    np.testing.assert_allclose(sin, np.sin(angles), atol=tolerance, rtol=0)


FAR = np.concatenate(
    [
        np.array([0, 1, 2, 255, 256, 257, 65_535, 65_536, 65_537, 131_071, 2**23 + 1, 9_999_999, 10_000_000]),
        np.random.default_rng(0).integers(0, 10_000_000, 40),
    ]
)


@for_each(
    ("rotary_dim", "base", "how"),
    [
        (128, 10_000.0, "eager"),
        (128, 10_000.0, "jit"),
        (128, 10_000.0, "constant"),
        (64, 500_000.0, "jit"),
        (64, 500_000.0, "constant"),
        (2, 10_000.0, "jit"),
    ],
)
def test_exact_tables_hold_to_ten_million(rotary_dim: int, base: float, how: str) -> None:
    frequencies = rj.rotary_frequencies(rotary_dim, base=base)

    def run(frequencies: rj.Frequencies, p: jax.Array) -> tuple[jax.Array, jax.Array]:
        return rj.rotary_tables(frequencies, p, exact=True)

    if how == "jit":
        run = jax.jit(run)
    elif how == "constant":  # XLA may fold what it can see: the parts of a frequency must survive that
        constant = jax.jit(lambda p: rj.rotary_tables(rj.rotary_frequencies(rotary_dim, base=base), p, exact=True))

        def run(frequencies: rj.Frequencies, p: jax.Array) -> tuple[jax.Array, jax.Array]:
            return constant(p)

    # fractions as far as float32 has any
    fractions = np.concatenate([np.linspace(-3, 3, 25), [1234.75, -99_999.5, 2_000_000.25, -2_000_000.25]])
    for positions in (np.concatenate([FAR, -FAR]).astype(np.int32), np.concatenate([FAR, -FAR, fractions]).astype(np.float32)):
        cos, sin = run(frequencies, jnp.asarray(positions))
        angles = naive_angles(positions, rotary_dim, base)
        np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6, rtol=0)
        np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6, rtol=0)


@PROPERTY
@given(
    st.lists(st.integers(-(10**7), 10**7), min_size=4, max_size=4), st.sampled_from([rj.NTK(factor=3.7), rj.Linear(factor=2.3)])
)
def test_exact_tables_hold_for_scaled_frequencies(positions: list[int], scaling: rj.FrequencyMap) -> None:
    frequencies = rj.rotary_frequencies(32, scaling=scaling)
    if isinstance(scaling, rj.Linear):
        expected = naive_frequencies(32) / scaling.factor
    else:
        expected = naive_frequencies(32, 10_000.0 * scaling.factor ** (32 / 30))
    cos, sin = TABLES(frequencies, jnp.array(positions), exact=True)
    angles = np.array(positions, np.float64)[:, None] * expected
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6, rtol=0)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6, rtol=0)


@for_each("exact", [False, True])
def test_attention_scale_is_folded_into_the_tables_but_not_the_matrix(exact: bool) -> None:
    default = rj.rotary_frequencies(8)
    scaled = rj.Frequencies(default.inv_freq, jnp.asarray(1.5, jnp.float32), default.inv_freq_low)
    positions = jnp.array([0, 3, 90])
    cos, sin = rj.rotary_tables(scaled, positions, exact=exact)
    np.testing.assert_allclose(cos, 1.5 * np.cos(naive_angles(positions, 8)), atol=2e-5)
    np.testing.assert_allclose(sin, 1.5 * np.sin(naive_angles(positions, 8)), atol=2e-5)
    np.testing.assert_array_equal(rj.rotation_matrix(3, scaled), rj.rotation_matrix(3, default))


def test_examples_may_have_different_frequencies_and_scales() -> None:
    rows = np.stack([naive_frequencies(8), naive_frequencies(8, 500.0)])
    frequencies = rj.Frequencies(jnp.asarray(rows, jnp.float32), jnp.array([1.0, 1.5]), jnp.zeros((2, 4)))
    for positions in (np.array([0, 4, 9]), np.array([[0, 4, 9], [5, 1, 70]])):
        cos, sin = rj.rotary_tables(frequencies, jnp.asarray(positions))
        angles = np.broadcast_to(positions, (2, 3))[..., None] * rows[:, None, :]
        np.testing.assert_allclose(cos, np.array([1.0, 1.5])[:, None, None] * np.cos(angles), atol=2e-5)
        np.testing.assert_allclose(sin, np.array([1.0, 1.5])[:, None, None] * np.sin(angles), atol=2e-5)


# several axes of positions


@for_each(
    ("sections", "arrangement", "axis_of_pair"),
    [
        ((2, 3, 3), "chunked", [0, 0, 1, 1, 1, 2, 2, 2]),
        ((1, 1, 2, 1, 1, 2), "chunked", [0, 1, 2, 2, 0, 1, 2, 2]),  # chunk j reads axis j mod 3
        ((4, 0, 4), "chunked", [0, 0, 0, 0, 2, 2, 2, 2]),
        ((4, 2, 2), "interleaved", [0, 1, 2, 0, 1, 2, 0, 0]),
        ((5, 3, 0), "interleaved", [0, 1, 0, 0, 1, 0, 0, 1]),
        ((3, 3, 2), "interleaved", [0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_each_pair_reads_its_axis(sections: tuple[int, ...], arrangement: str, axis_of_pair: list[int]) -> None:
    positions = np.array([[[0, 3, 9]], [[0, 5, 2]], [[1, 7, 11]]])  # [axes, B, T]
    cos, sin = tables_at(positions, 16, sections=sections, arrangement=arrangement)
    angles = np.stack([positions[axis] * f for axis, f in zip(axis_of_pair, naive_frequencies(16), strict=True)], axis=-1)
    np.testing.assert_allclose(cos, np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(sin, np.sin(angles), atol=2e-6)


def test_exact_tables_of_several_axes_and_equal_axes() -> None:
    positions = np.array([[[0, 9_999_991]], [[3_000_017, 5]]])
    cos, sin = tables_at(positions, 8, sections=(3, 1), exact=True)
    angles = np.stack([positions[axis] * f for axis, f in zip([0, 0, 0, 1], naive_frequencies(8), strict=True)], axis=-1)
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6)

    positions = np.array([0, 4, 31])
    plain = tables_at(positions, 16)
    for arrangement in ("chunked", "interleaved"):
        got = tables_at(np.stack([positions] * 3), 16, sections=(4, 2, 2), arrangement=arrangement)
        np.testing.assert_array_equal(got[0], plain[0])
        np.testing.assert_array_equal(got[1], plain[1])


# precision


@for_each("dtype", ["bfloat16", "float16"])
@for_each("layout", LAYOUTS)
@for_each("head_dim", [8, 64, 128])
def test_half_precision_survives_far_positions(head_dim: int, layout: str, dtype: str) -> None:
    positions = np.array([100_000, 99_999, 65_537, 257])
    x = jnp.asarray(normal(5, 4, 2, head_dim), dtype)
    got = ROTATE(x, *tables_at(positions, head_dim), layout=layout)
    assert got.dtype == jnp.dtype(dtype)
    wide = np.asarray(x.astype(jnp.float32), np.float64)
    expected = naive_rotate(wide, naive_angles(positions, head_dim), layout)
    error = np.linalg.norm(pairs_of(np.asarray(got.astype(jnp.float32), np.float64) - expected, layout), axis=-1)
    norms = np.linalg.norm(pairs_of(wide, layout), axis=-1)
    assert np.max(error / norms) < 1e-2


@for_each("layout", LAYOUTS)
def test_what_is_not_rotated_keeps_its_bits_in_half_precision(layout: str) -> None:
    x = jnp.asarray(normal(6, 3, 2, 8), jnp.bfloat16)
    got = ROTATE(x, *tables_at([1, 2, 3], 4), layout=layout)
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])
    wide = np.asarray(x.astype(jnp.float32))
    expected = naive_rotate(wide, naive_angles(np.array([1, 2, 3]), 4), layout)
    np.testing.assert_allclose(np.asarray(got.astype(jnp.float32)), expected, atol=0.02)


# jit, vmap, grad


@for_each("exact", [False, True])
def test_jit_and_vmap_of_the_tables(exact: bool) -> None:
    frequencies, positions = rj.rotary_frequencies(8), jnp.array([[0, 5, 200], [3, -9, 77]])

    def run(f: rj.Frequencies, p: jax.Array) -> tuple[jax.Array, jax.Array]:
        return rj.rotary_tables(f, p, exact=exact)

    eager = run(frequencies, positions)
    rows = [TABLES(frequencies, row, exact=exact) for row in positions]
    for got in (jax.jit(run)(frequencies, positions), jax.vmap(run, in_axes=(None, 0))(frequencies, positions)):
        for i in (0, 1):
            np.testing.assert_allclose(got[i], eager[i], atol=1e-6)
            np.testing.assert_allclose(got[i], jnp.stack([row[i] for row in rows]), atol=1e-6)


@for_each("arrangement", ["chunked", "interleaved"])
def test_jit_of_sections(arrangement: str) -> None:
    positions = jnp.array([[0, 5, 200], [3, -9, 77], [1, 2, 3]])
    eager = rj.rotary_tables(rj.rotary_frequencies(16), positions, sections=(4, 2, 2), arrangement=arrangement)
    compiled = tables_at(positions, 16, sections=(4, 2, 2), arrangement=arrangement)
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-6)


@for_each("layout", LAYOUTS)
def test_jit_and_vmap_of_rotate(layout: str) -> None:
    x, positions = jnp.asarray(normal(7, 2, 3, 2, 8)), jnp.array([[0, 5, 20], [3, -9, 77]])
    cos, sin = tables_at(positions, 6)

    def run(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        return rj.rotate(x, cos, sin, layout=layout)

    eager = run(x, cos, sin)
    loop = np.stack([run(x[b], cos[b], sin[b]) for b in range(2)])
    np.testing.assert_allclose(eager, loop, atol=1e-6)
    np.testing.assert_allclose(jax.jit(run)(x, cos, sin), loop, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(run)(x, cos, sin), loop, atol=1e-6)
    shared = jax.vmap(run, in_axes=(0, None, None))(x, cos[0], sin[0])
    np.testing.assert_allclose(run(x, cos[0], sin[0]), shared, atol=1e-6)


def test_the_matrix_under_jit_and_vmap_and_the_gradient_of_rotate() -> None:
    frequencies = rj.rotary_frequencies(6)
    loop = np.stack([rj.rotation_matrix(p, frequencies) for p in (0, 4, -9)])
    got = jax.jit(jax.vmap(rj.rotation_matrix, in_axes=(0, None)))(jnp.array([0, 4, -9]), frequencies)
    np.testing.assert_allclose(got, loop, atol=1e-6)

    x, tables = jnp.asarray(normal(8, 3, 2, 8)), tables_at([0, 4, 33], 6)
    check_grads(rj.rotate, (x, *tables), order=1, atol=2e-2, rtol=2e-2)


@for_each("rotary_dim", [4, 8])
@for_each("layout", LAYOUTS)
def test_the_transpose_of_a_rotation_is_its_inverse(layout: str, rotary_dim: int) -> None:
    x, upstream = jnp.asarray(normal(8, 3, 2, 8)), jnp.asarray(normal(9, 3, 2, 8))
    cos, sin = tables_at([0, 4, 33], rotary_dim)
    _, pullback = jax.vjp(lambda x: rj.rotate(x, cos, sin, layout=layout), x)
    expected = naive_rotate(np.asarray(upstream), -naive_angles(np.array([0, 4, 33]), rotary_dim), layout)
    np.testing.assert_allclose(pullback(upstream)[0], expected, atol=1e-5)
    np.testing.assert_allclose(pullback(upstream)[0], rj.rotate(upstream, cos, sin, layout=layout, inverse=True), atol=1e-6)


@for_each("exact", [False, True])
def test_the_gradient_of_the_tables_by_position(exact: bool) -> None:
    positions = np.array([0.5, -2.25, 30.75, 3.0])
    frequencies = rj.rotary_frequencies(6)
    weights = normal(10, 2, 4, 3)

    def weighted(p: jax.Array) -> jax.Array:
        return sum(jnp.sum(t * w) for t, w in zip(rj.rotary_tables(frequencies, p, exact=exact), weights, strict=True))

    angles = naive_angles(positions, 6)
    by_angle = np.cos(angles) * weights[1] - np.sin(angles) * weights[0]
    got = jax.jit(jax.grad(weighted))(jnp.asarray(positions, jnp.float32))
    np.testing.assert_allclose(got, np.sum(by_angle * naive_frequencies(6), axis=-1), atol=1e-5)


def test_the_gradient_of_the_tables_by_frequency() -> None:
    positions, frequencies = np.array([0, 3, -7]), rj.rotary_frequencies(6)

    def sines(inv_freq: jax.Array) -> jax.Array:
        return rj.rotary_tables(frequencies._replace(inv_freq=inv_freq), jnp.asarray(positions))[1]

    jacobian = jax.jacrev(sines)(frequencies.inv_freq)  # [T, R/2, R/2]
    expected = positions[:, None] * np.cos(naive_angles(positions, 6))
    np.testing.assert_allclose(jacobian, expected[:, :, None] * np.eye(3), atol=1e-5)


@for_each("layout", LAYOUTS)
def test_the_gradient_of_the_matrix_is_its_generator(layout: str) -> None:
    frequencies = rj.rotary_frequencies(4)

    def matrix(p: float | jax.Array) -> jax.Array:
        return rj.rotation_matrix(p, frequencies, layout=layout)

    generator = np.zeros((4, 4))
    for i, f in enumerate([1.0, 0.01]):
        first, second = (i, i + 2) if layout == "half" else (2 * i, 2 * i + 1)
        generator[second, first], generator[first, second] = f, -f
    for derivative in (jax.jit(jax.jacfwd(matrix)), jax.jit(jax.jacrev(matrix))):
        np.testing.assert_allclose(derivative(0.0), generator, atol=1e-7)
        np.testing.assert_allclose(derivative(2.5), generator @ np.asarray(matrix(2.5), np.float64), atol=1e-6)


# errors


def rotated(*shape: int, positions: list | np.ndarray, rotary_dim: int, **options: object) -> jax.Array:
    return rj.rotate(jnp.ones(shape), *tables_at(positions, rotary_dim), **options)


def tables_of_axes(sections: tuple[int, ...], *, axes: int = 3, **options: object) -> object:
    return tables_at(np.zeros((axes, 4), np.int32), 16, sections=sections, **options)


UNKNOWN_LAYOUT = r"layout must be 'half' \(Llama, GPT-NeoX\) or 'interleaved' \(GPT-J, the paper\), got 'pairs'"


@for_each(
    ("make", "message"),
    [
        (lambda: rotated(1, 1, 4, positions=[0], rotary_dim=4, layout="pairs"), UNKNOWN_LAYOUT),
        (lambda: rj.rotation_matrix(1, rj.rotary_frequencies(4), layout="pairs"), UNKNOWN_LAYOUT),
        (
            lambda: rotated(1, 1, 6, positions=[0], rotary_dim=8),
            r"the tables rotate 8 features, but a head of x has 6; use rotary_dim <= 6",
        ),
        (
            lambda: rj.rotate(jnp.zeros((2, 1, 8)), jnp.ones((2, 4)), jnp.ones((1, 4))),
            r"cos and sin must have one shape, got \(2, 4\) and \(1, 4\)",
        ),
        (
            lambda: rotated(2, 1, 8, positions=[[0, 1]], rotary_dim=8),
            r"x \(2, 1, 8\) must have the axes \[..., T, H, D\], and the tables \(1, 2, 4\)",
        ),
        # one cached query against the tables of five positions: broadcasting would answer with five rows
        (lambda: rotated(1, 2, 8, positions=np.arange(5), rotary_dim=4), r"with the same T"),
        (lambda: rotated(1, 2, 8, positions=np.arange(5), rotary_dim=8), r"with the same T"),
        (
            lambda: rj.rotate(jnp.ones((2, 1, 4), jnp.int32), jnp.ones((2, 2)), jnp.ones((2, 2))),
            "rotate takes floats, got int32; cast x first",
        ),
        (
            lambda: tables_of_axes((2, 3, 2)),
            r"sections=\(2, 3, 2\) must not be negative and must sum to the 8 rotated pairs, got 7",
        ),
        (lambda: tables_of_axes((2, 3, 4), arrangement="interleaved"), r"must sum to the 8 rotated pairs, got 9"),
        (lambda: tables_of_axes((-1, 5, 4)), r"sections=\(-1, 5, 4\) must not be negative"),
        (
            lambda: tables_of_axes((4, 4), arrangement="interleaved"),
            r"interleaved sections=\(4, 4\) need one axis of positions each, got 3 axes",
        ),
        (
            lambda: tables_of_axes((2, 2, 4), arrangement="interleaved"),
            r"axis 2 would take pair 11 of 8; give it at most 2 pairs",
        ),
        (
            lambda: tables_of_axes((2, 4, 2), arrangement="interleaved"),
            r"axis 1 would take pair 10 of 8; give it at most 3 pairs",
        ),
        (
            lambda: tables_of_axes((2, 3, 3), arrangement="woven"),
            r"arrangement must be 'chunked', 'interleaved' or 'axial', got 'woven'",
        ),
        # two chunks never read the third axis
        (lambda: tables_of_axes((4, 4)), r"sections=\(4, 4\) leave axes unread: .* have 3 axes"),
        # positions [T] in place of [axes, ..., T]: each token would be taken for an axis
        (lambda: tables_at(np.arange(6), 16, sections=(8,)), r"sections=\(8,\) leave axes unread: .* have 6 axes"),
    ],
)
def test_what_does_not_fit_is_an_error(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
