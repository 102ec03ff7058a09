"""Positions of several axes: RoPE(sections=...) against loops over pairs, and who may read which axis."""

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
from rope_jax.model.attention import attend

DIMS = rj.Dims(width=32, num_heads=2, head_dim=16)
LENGTH = 6
# (time, row, column) of each token: no axis is contiguous, none sorted, and no two are alike
QUERY = np.array([[0, 4, 9, 9, 9, 30], [0, 4, 11, 10, 9, 30], [0, 4, 2, 13, 9, 30]])
KEY = np.array([[2, 4, 8, 9, 12, 25], [3, 5, 11, 10, 9, 21], [1, 7, 2, 14, 6, 20]])


def contents(*leading, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(0), (2, *leading, LENGTH, 2, 16)).astype(dtype)


def axis_and_frequency(sections, arrangement, axes, pairs, base=10_000.0):
    """Of every pair, as the released codes share them out; a pair at a time."""
    usual = [base ** (-2 * i / (2 * pairs)) for i in range(pairs)]
    if arrangement == "chunked":  # Qwen2-VL: cut into sections, chunk j reads axis j mod axes
        out = []
        for chunk, size in enumerate(sections):
            for _ in range(size):
                out.append((chunk % axes, usual[len(out)]))
        return out
    if arrangement == "interleaved":  # Qwen3-VL: all time, then row takes 1, 4, 7, ..., and column 2, 5, 8, ...
        out = [(0, frequency) for frequency in usual]
        for axis in range(1, axes):
            for count in range(sections[axis]):
                out[axis + axes * count] = (axis, usual[axis + axes * count])
        return out
    # axial: every axis is a separate RoPE, over its share of the features
    size = pairs // axes
    return [(axis, base ** (-2 * i / (2 * size))) for axis in range(axes) for i in range(size)]


def naive(x, positions, shared, layout="half"):
    """x [T, H, D] with each pair rotated by the position on its axis; float64. positions: [axes, T]."""
    out = np.array(x, np.float64)
    pairs = len(shared)
    for t, h, i in np.ndindex(out.shape[0], out.shape[1], pairs):
        axis, frequency = shared[i]
        a, b = (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)
        angle = float(positions[axis][t]) * frequency
        first, second = float(x[t, h, a]), float(x[t, h, b])
        out[t, h, a] = first * math.cos(angle) - second * math.sin(angle)
        out[t, h, b] = first * math.sin(angle) + second * math.cos(angle)
    return out


@partial(jax.jit, static_argnums=0)
def rotated(encoder, q, k, positions):
    return encoder.rotate(encoder.tables(encoder.prepare({}, positions.length, DIMS), positions), q, k)


def apart(query, key, **more):
    return rj.Positions(query=jnp.asarray(query), key=jnp.asarray(key), axes=len(query), **more)


CASES = for_each(
    ("sections", "arrangement", "axes"),
    [
        ((4, 2, 2), "chunked", 3),
        ((1, 3, 4), "chunked", 3),
        ((2, 1, 1, 2, 1, 1), "chunked", 3),  # time, row, column, and once more
        ((5, 3), "chunked", 2),
        ((4, 2, 2), "interleaved", 3),
        ((3, 3, 2), "interleaved", 3),
        ((5, 3), "interleaved", 2),
        ((4, 4), "axial", 2),
        ((2, 2, 2, 2), "axial", 4),
    ],
)


@CASES
@for_each("layout", ["half", "interleaved"])
def test_each_pair_is_rotated_by_its_axis(sections, arrangement, axes, layout):
    encoder = rj.RoPE(sections=sections, arrangement=arrangement, layout=layout)
    query, key = (np.concatenate([positions, positions[:1] + 1])[:axes] for positions in (QUERY, KEY))
    q, k = contents()
    shared = axis_and_frequency(sections, arrangement, axes, 8)
    got = rotated(encoder, q, k, apart(query, key))
    np.testing.assert_allclose(got[0], naive(q, query, shared, layout), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(got[1], naive(k, key, shared, layout), rtol=1e-4, atol=2e-5)
    together = rotated(encoder, q, k, rj.Positions(query=jnp.asarray(query), axes=axes))
    np.testing.assert_allclose(together[1], naive(k, query, shared, layout), rtol=1e-4, atol=2e-5)


def test_the_naive_sharing_is_the_documented_one():
    letters = {
        ("chunked", (2, 3, 3)): "TTHHHWWW",
        ("interleaved", (4, 2, 2)): "THWTHWTT",
        ("axial", (4, 4)): "TTTTHHHH",
    }
    for (arrangement, sections), expected in letters.items():
        shared = axis_and_frequency(sections, arrangement, len(sections), 8)
        assert "".join("THW"[axis] for axis, _ in shared) == expected


def test_batch_axes_bfloat16_and_vmap():
    encoder = rj.RoPE(sections=(4, 2, 2))
    shared = axis_and_frequency((4, 2, 2), "chunked", 3, 8)
    q, k = contents(2, dtype=jnp.bfloat16)
    query, key = np.stack([QUERY, QUERY[::-1]], axis=1), np.stack([KEY, KEY + 4000], axis=1)  # [axes, B, T]
    positions = apart(query, key)
    got = rotated(encoder, q, k, positions)
    wide = rotated(encoder, q.astype(jnp.float32), k.astype(jnp.float32), positions)
    for row in range(2):
        np.testing.assert_allclose(wide[0][row], naive(q[row], query[:, row], shared), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(wide[1][row], naive(k[row], key[:, row], shared), rtol=1e-3, atol=2e-3)
    for narrow, exact in zip(got, wide, strict=True):
        assert narrow.dtype == jnp.bfloat16
        np.testing.assert_array_equal(narrow, exact.astype(jnp.bfloat16))

    def alone(q, k, query, key):
        return rotated(encoder, q, k, rj.Positions(query=query, key=key, axes=3))

    mapped = jax.vmap(alone, in_axes=(0, 0, 1, 1))(q, k, positions.query, positions.key)
    for ours, theirs in zip(mapped, got, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@for_each(("sections", "arrangement"), [((4, 2, 2), "chunked"), ((3, 3, 2), "interleaved")])
def test_tokens_of_plain_text_are_rotated_as_without_sections(sections, arrangement):
    """They stand at the same place on every axis, whether the positions say so or have one axis only."""
    q, k = contents()
    text = jnp.asarray(QUERY[0])
    encoder = rj.RoPE(sections=sections, arrangement=arrangement)
    plain = rotated(rj.RoPE(), q, k, rj.Positions(query=text))
    for positions in (rj.Positions(query=text), rj.Positions(query=jnp.stack([text] * 3), axes=3)):
        for ours, theirs in zip(rotated(encoder, q, k, positions), plain, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_axial_text_is_two_ropes_side_by_side():
    q, k = contents()
    text = rj.Positions(query=jnp.asarray(QUERY[0]))
    shared = axis_and_frequency((4, 4), "axial", 2, 8)
    got = rotated(rj.RoPE(sections=(4, 4), arrangement="axial"), q, k, text)
    np.testing.assert_allclose(got[0], naive(q, QUERY[[0, 0]], shared), rtol=1e-4, atol=2e-5)
    assert np.abs(np.asarray(got[0]) - np.asarray(rotated(rj.RoPE(), q, k, text)[0])).max() > 0.1


@for_each("arrangement", ["chunked", "interleaved", "axial"])
@settings(deadline=None, max_examples=10)
@given(down=st.integers(-50, 50), right=st.integers(-50, 50))
def test_scores_depend_on_the_relative_row_and_column_only(arrangement, down, right):
    encoder = rj.RoPE(sections=(4, 4), arrangement=arrangement)
    q, k = contents()
    moved = np.array([[down], [right]])
    here, there = (
        np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in rotated(encoder, q, k, apart(QUERY[1:] + s, KEY[1:] + s))))
        for s in (0 * moved, moved)
    )
    np.testing.assert_allclose(there, here, atol=2e-4)
    # and on each of the two
    for axis in range(2):
        one = QUERY[1:].copy()
        one[axis] += 3
        other = np.einsum("thd,shd->hts", *(np.asarray(x, np.float64) for x in rotated(encoder, q, k, apart(one, KEY[1:]))))
        assert np.abs(other - here).max() > 0.1


def test_a_frequency_map_goes_with_sections():
    encoder = rj.RoPE(sections=(4, 4), scaling=rj.Linear(factor=4.0))
    q, k = contents()
    shared = [(axis, frequency / 4) for axis, frequency in axis_and_frequency((4, 4), "chunked", 2, 8)]
    got = rotated(encoder, q, k, apart(QUERY[1:], KEY[1:]))
    np.testing.assert_allclose(got[0], naive(q, QUERY[1:], shared), rtol=1e-4, atol=2e-5)


# order: what a query sees where a position says nothing of it


@partial(jax.jit, static_argnums=0, static_argnames="block_size")
def attended(encoder, q, k, v, positions, block_size=128):
    tables = encoder.tables(encoder.prepare({}, positions.length, DIMS), positions)
    q, k = encoder.rotate(tables, q, k)
    return attend(q, k, v, positions, bias=lambda *a: encoder.bias(tables, *a), block_size=block_size)


@for_each("encoder", [rj.RoPE(sections=(4, 2, 2)), rj.ALiBi(axis=1)])
def test_the_order_of_several_axes_is_that_of_the_sequence(encoder):
    """Whole, in blocks, and one query at a time against a cache that says its order."""
    q, k = contents()
    v = q + 1
    whole = attended(encoder, q, k, v, rj.Positions(query=jnp.asarray(QUERY), axes=3))
    np.testing.assert_allclose(
        attended(encoder, q, k, v, rj.Positions(query=jnp.asarray(QUERY), axes=3), block_size=4), whole, atol=1e-5
    )
    for t in (0, 3, 5):
        one = apart(QUERY[:, t : t + 1], QUERY, query_order=jnp.array([t]), key_order=jnp.arange(LENGTH))
        got = attended(encoder, q[t : t + 1], k, v, one)
        np.testing.assert_allclose(got, whole[t : t + 1], atol=1e-5)
        only = jnp.where((jnp.arange(LENGTH) > t)[:, None, None], 50.0, v)
        np.testing.assert_allclose(attended(encoder, q[t : t + 1], k, only, one), got, atol=1e-5)


# one axis, and which

READERS = {
    "RoPE": rj.RoPE(),
    "XPos": rj.XPos(),
    "Learned": rj.Learned(max_length=64),
    "Sinusoidal": rj.Sinusoidal(),
    "ALiBi": rj.ALiBi(),
    "HardALiBi": rj.HardALiBi(masked_heads=1),
    "T5Bias": rj.T5Bias(),
    "Kerple": rj.Kerple(),
    "Fire": rj.Fire(),
    "TransformerXL": rj.TransformerXL(),
}


def run_hooks(encoder, positions):
    q, k = contents()
    params = encoder.init(jax.random.key(0), DIMS)
    tables = encoder.tables(encoder.prepare(params, positions.length, DIMS), positions)
    # as many examples as axes, so that no shape gives the axes away
    encoder.embed(tables, jnp.zeros((3, LENGTH, 32)), positions)
    encoder.rotate(tables, q, k)
    return encoder.bias(tables, q, k, positions)


@for_each("name", READERS)
def test_who_reads_one_axis_refuses_several(name):
    with pytest.raises(
        ValueError,
        match=rf"{name}\S* reads one axis, but the positions have 3, counted from 0; use RoPE with sections=, which reads",
    ):
        run_hooks(READERS[name], rj.Positions(query=jnp.asarray(QUERY), axes=3))


BIASES = [encoder for encoder in READERS.values() if isinstance(encoder, rj.Bias)]


@for_each("kind", BIASES)
def test_a_bias_reads_the_axis_of_its_option(kind):
    q, k = contents()
    params = kind.init(jax.random.key(0), DIMS)
    for axis in (0, 2):
        encoder = type(kind)(**{"axis": axis} | ({"masked_heads": 1} if isinstance(kind, rj.HardALiBi) else {}))
        prepared = encoder.prepare(params, None, DIMS)
        got = encoder.bias(prepared, q, k, apart(QUERY, KEY))
        expected = kind.bias(prepared, q, k, rj.Positions(query=jnp.asarray(QUERY[axis]), key=jnp.asarray(KEY[axis])))
        np.testing.assert_array_equal(got, expected)
    # plain text is on every axis at one place
    text = rj.Positions(query=jnp.asarray(QUERY[0]))
    np.testing.assert_array_equal(encoder.bias(prepared, q, k, text), kind.bias(prepared, q, k, text))


def test_alibi_of_the_second_axis():
    """-slope * distance on that axis, as a loop."""
    encoder = rj.ALiBi(axis=1)
    got = encoder.bias(encoder.prepare({}, None, DIMS), None, None, apart(QUERY, KEY))
    expected = [[[-slope * abs(int(m) - int(n)) for n in KEY[1]] for m in QUERY[1]] for slope in (1 / 16, 1 / 256)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_composed_each_reads_its_axis():
    encoder = rj.Compose(rj.RoPE(sections=(4, 2, 2)), rj.ALiBi(axis=1), rj.ALiBi(axis=2, slope_scale=3.0))
    positions = apart(QUERY, KEY)
    q, k = contents()
    tables = encoder.tables(encoder.prepare({}, None, DIMS), positions)
    np.testing.assert_allclose(
        encoder.rotate(tables, q, k)[0], naive(q, QUERY, axis_and_frequency((4, 2, 2), "chunked", 3, 8)), rtol=1e-4, atol=2e-5
    )
    distance = [np.abs(QUERY[axis][:, None] - KEY[axis]) for axis in (1, 2)]
    expected = [-slope * (distance[0] + 3 * distance[1]) for slope in (1 / 16, 1 / 256)]
    np.testing.assert_allclose(encoder.bias(tables, q, k, positions), expected, rtol=1e-6)


def test_content_positions_need_no_axis():
    """CoPE reads the order alone."""
    encoder = rj.CoPE(max_count=3, init_scale=1.0)
    params = encoder.init(jax.random.key(0), DIMS)
    q, k = contents()
    several, plain = rj.Positions(query=jnp.asarray(QUERY), axes=3), rj.Positions(query=jnp.arange(LENGTH))
    np.testing.assert_array_equal(encoder.bias(params, q, k, several), encoder.bias(params, q, k, plain))


@for_each(
    ("make", "message"),
    [
        (
            lambda: rj.check_requirements(rj.RoPE(sections=(4, 2, 1)), DIMS, max_position=8),
            "sections=(4, 2, 1) must not be negative and must sum to the 8 rotated pairs, got 7",
        ),
        (
            lambda: rj.check_requirements(rj.RoPE(sections=(6, -1, 3), arrangement="interleaved"), DIMS, max_position=8),
            "sections=(6, -1, 3) must not be negative and must sum to the 8 rotated pairs, got 8",
        ),
        (
            lambda: rj.check_requirements(rj.RoPE(sections=(2, 3, 3), rotary_fraction=0.5), DIMS, max_position=8),
            "must sum to the 4 rotated pairs, got 8",
        ),
        (
            lambda: rj.check_requirements(rj.RoPE(sections=(0, 4, 4), arrangement="interleaved"), DIMS, max_position=8),
            "interleaved sections=(0, 4, 4) do not fit: axis 1 would take pair 10 of 8; give it at most 3 pairs",
        ),
        (
            lambda: rj.check_requirements(rj.RoPE(sections=(5, 3), arrangement="axial"), DIMS, max_position=8),
            "axial sections=(5, 3) must be equal: every axis has the same frequencies",
        ),
        (
            lambda: run_hooks(rj.RoPE(sections=(5, 3)), rj.Positions(query=jnp.asarray(QUERY), axes=3)),
            "sections=(5, 3) leave axes unread: positions [axes, ..., T] have 3 axes",
        ),
        (
            lambda: run_hooks(rj.RoPE(sections=(4, 4), arrangement="axial"), rj.Positions(query=jnp.asarray(QUERY), axes=3)),
            "axial sections=(4, 4) need one axis of positions each, got 3 axes",
        ),
        (
            lambda: run_hooks(
                rj.RoPE(sections=(4, 2, 2), arrangement="interleaved"), rj.Positions(query=jnp.asarray(QUERY[:2]), axes=2)
            ),
            "interleaved sections=(4, 2, 2) need one axis of positions each, got 2 axes",
        ),
        (
            lambda: rj.RoPE(sections=(4, 4), arrangement="rows"),
            "RoPE arrangement must be 'chunked' or 'interleaved' or 'axial', got 'rows'",
        ),
        (lambda: rj.RoPE(sections=[4, 4]), "RoPE sections must be a tuple, of which each is an int or None, got [4, 4]"),
        (
            lambda: run_hooks(rj.ALiBi(axis=3), rj.Positions(query=jnp.asarray(QUERY), axes=3)),
            "ALiBi reads axis 3, but the positions have 3, counted from 0; use RoPE with sections=, which reads several",
        ),
        (
            lambda: run_hooks(rj.T5Bias(axis=-1), rj.Positions(query=jnp.asarray(QUERY), axes=3)),
            "T5Bias axis must not be negative, got -1; axes are counted from 0",
        ),
        (
            lambda: apart(QUERY, KEY).visible(),
            "positions of 3 axes do not define an order; give query_order and key_order together with key=",
        ),
        (
            lambda: apart(QUERY, KEY, query_order=jnp.arange(LENGTH)).visible(),
            "positions of 3 axes do not define an order; give query_order and key_order together with key=",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
