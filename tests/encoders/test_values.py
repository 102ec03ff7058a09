"""Positions, lengths and factors of every type: the right value, computed in float64 or with Python's integers, or an error."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rope_jax as rj
from examples import DIMS, ENCODERS, tables_of_first_layer
from looping import for_each
from rope_jax.encoders._internal.arrays import difference, distance, pairwise
from rope_jax.encoders._internal.inputs import integers, numbers
from rope_jax.encoders.base import Encoder
from rope_jax.model.attention import attend
from rope_jax.tasks import Copy, decoder

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("float16", "bfloat16", "float32", "float64")
INT32 = np.iinfo(np.int32)
FREQUENCIES = rj.rotary_frequencies(8)
EXACT = np.asarray(FREQUENCIES.inv_freq, np.float64) + np.asarray(FREQUENCIES.inv_freq_low, np.float64)


def ends(dtype):
    """The ends of an integer type, as far as int32 holds them, and a number between."""
    info = np.iinfo(dtype)
    return np.array([max(info.min, INT32.min), 3, min(info.max, INT32.max)], dtype)


def naive_bucket(relative, bidirectional):
    """T5's bucket of Python's integer, of 32 buckets up to 128 (arXiv:1910.10683; the released code's rule)."""
    buckets, first = (16, 16 if relative > 0 else 0) if bidirectional else (32, 0)
    size = abs(relative) if bidirectional else max(-relative, 0)
    exact = buckets // 2
    if size < exact:
        return first + size
    coarse = exact + int(np.log(np.float32(size) / np.float32(exact)) / np.log(128 / exact) * (buckets - exact))
    return first + min(coarse, buckets - 1)


def product(p):
    """The angles of `rotary_tables` in float32, as float64."""
    return np.multiply.outer(p.astype(np.float32), np.asarray(FREQUENCIES.inv_freq)).astype(np.float64)


# every public function of positions [T], and its value for Python's integers
READERS = {
    "rotary_tables": (lambda p: rj.rotary_tables(FREQUENCIES, p)[0], lambda p: np.cos(product(np.array(p)))),
    "rotary_tables(exact=True)": (
        lambda p: rj.rotary_tables(FREQUENCIES, p, exact=True)[1],
        lambda p: np.sin(np.multiply.outer(np.array(p, np.float64), EXACT)),
    ),
    "rotary_tables(sections=)": (
        lambda p: rj.rotary_tables(FREQUENCIES, p[None], sections=(2, 2), exact=True)[0],
        lambda p: np.cos(np.multiply.outer(np.array(p, np.float64), EXACT)),
    ),
    "sinusoidal": (
        lambda p: rj.sinusoidal(p, 2),
        lambda p: np.stack([f(np.array(p).astype(np.float32).astype(np.float64)) for f in (np.sin, np.cos)], -1),
    ),
    "alibi_bias": (
        lambda p: rj.alibi_bias(p, p, 1),
        lambda p: np.array([[[-abs(q - k) / 256 for k in p] for q in p]], float),
    ),
    "t5_bucket": (
        lambda p: rj.t5_bucket(p, bidirectional=False),
        lambda p: np.array([naive_bucket(r, False) for r in p]),
    ),
    "t5_bucket(bidirectional=True)": (
        lambda p: rj.t5_bucket(p, bidirectional=True),
        lambda p: np.array([naive_bucket(r, True) for r in p]),
    ),
    "SlidingWindow": (
        lambda p: rj.SlidingWindow(size=3).bias({}, None, None, rj.Positions(query=p, key=p))[0] == 0,
        lambda p: np.array([[q - k < 3 for k in p] for q in p]),
    ),
    "HardALiBi": (
        lambda p: rj.HardALiBi(masked_heads=1).bias(jnp.zeros(1), None, None, rj.Positions(query=p))[0] == 0,
        lambda p: np.array([[q == k for k in p] for q in p]),
    ),
    "Positions.visible": (
        lambda p: rj.Positions(query=p, key=p).visible(),
        lambda p: np.array([[k <= q for k in p] for q in p]),
    ),
    "Positions.visible, by segment": (
        lambda p: rj.Positions(query=jnp.arange(3), query_segment=p, key_segment=p, causal=False).visible(),
        lambda p: np.array([[q == k for k in p] for q in p]),
    ),
    "from_segment_ids": (rj.positions.from_segment_ids, lambda p: np.zeros(3)),
    "grid": (lambda p: rj.positions.grid(p, separator=3)[1], lambda p: np.array([0, 0, 1])),
    "contiguous": (lambda p: rj.positions.contiguous(1, offset=p)[:, 0], np.array),
}


@for_each("name", READERS)
def test_every_integer_type_has_the_value_of_python_integers(name):
    function, expected = READERS[name]
    compiled = jax.jit(function)
    for dtype in INTEGERS:
        values = ends(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX says that it makes int32 of int64
            got = [function(values), *([] if "64" in dtype else [function(jnp.asarray(values)), compiled(values)])]
        right = expected([int(value) for value in values])
        for each in got:
            np.testing.assert_allclose(each, right, atol=2e-6, rtol=2e-7, err_msg=dtype)


@pytest.mark.slow
@for_each("name", READERS)
def test_every_integer_type_has_the_value_of_python_integers_with_64_bits(name):
    """Traced values of 64 bits, which cannot be checked, are computed with."""
    function, expected = READERS[name]
    with jax.enable_x64(True):
        for dtype in INTEGERS:
            values = jnp.asarray(ends(dtype))
            got = jax.jit(function)(values)
            np.testing.assert_allclose(got, expected(values.tolist()), atol=2e-6, rtol=2e-7, err_msg=dtype)


@for_each("name", READERS)
def test_what_int32_does_not_hold_is_refused(name):
    function, _ = READERS[name]
    for beyond in (2**31, 2**33 + 1, -(2**31) - 1, 2**63 - 1, 2**64 - 1):
        with pytest.raises(ValueError, match=r"must be within|int32 does not hold"):
            function(np.array([0, 3, beyond], np.uint64 if beyond > 0 else np.int64))
    if name != "rotary_tables(sections=)":  # p[None]
        for beyond in (2**64 - 1, 10**30):  # a list of Python's integers, of which numpy makes floats or objects
            with pytest.raises(ValueError, match=r"must be within|int32 does not hold"):
                function([0, 3, beyond])


def test_contiguous_positions_do_not_overflow():
    assert rj.positions.contiguous(3, offset=2**31 - 3).tolist() == [2**31 - 3, 2**31 - 2, 2**31 - 1]
    for length, offset in ((3, 2**31 - 1), (2**31 - 1, 2), (2, np.array([0, 2**31 - 1]))):
        with pytest.raises(ValueError, match=r"give positions up to \d+, which int32 does not hold"):
            rj.positions.contiguous(length, offset=offset)


def test_distances_of_any_two_integers_are_right():
    for dtype in INTEGERS[:3] + INTEGERS[4:7]:
        values = ends(dtype)
        query, key = pairwise(jnp.asarray(values), jnp.asarray(values))
        right = np.subtract.outer(values.astype(object), values.astype(object))
        assert (np.asarray(distance(query, key)).astype(object) == abs(right)).all()
        np.testing.assert_array_equal(difference(query, key), right.astype(np.float64).astype(np.float32))
    query, key = jax.jit(pairwise)(jnp.array([1, 2], jnp.uint32), jnp.array([-1, 3], jnp.int32))
    assert distance(query, key).tolist() == [[2, 2], [3, 1]]


NO_NUMBERS = {
    "nan": np.array([0.0, np.nan, 2.0]),
    "inf": np.array([0.0, 1.0, np.inf], np.float32),
    "-inf": jnp.array([-jnp.inf, 1.0, 2.0], jnp.bfloat16),
    "beyond float32": np.array([0.0, 1e300, 2.0]),
    "complex": np.array([0, 1j, 2]),
    "bool": np.array([True, False, True]),
    "text": ["0", "1", "2"],
    "None": [None, None, None],
    "dict": {"a": 1},
}


def hooks(encoder: Encoder, positions: rj.Positions, tokens: int = 3) -> None:
    """Calls every hook of an encoder, and so all that reads positions."""
    x, q = jnp.ones((tokens, 16)), jnp.ones((tokens, 2, 8))
    tables = tables_of_first_layer(encoder, encoder.init(jax.random.key(0), DIMS), positions)
    encoder.embed(tables, x, positions)
    encoder.bias(tables, *encoder.rotate(tables, q, q), positions)


READS_NO_POSITIONS = (rj.NoPE, rj.LogitScale, rj.CoPE, rj.SlidingWindow)


def reads_positions(encoder):
    by_length = isinstance(encoder, rj.LogN) and encoder.by == "length"
    return not (isinstance(encoder, READS_NO_POSITIONS) or by_length)


@for_each("encoder", [encoder for encoder in ENCODERS if reads_positions(encoder)])
def test_an_encoder_refuses_what_is_no_position(encoder):
    for positions in (*NO_NUMBERS.values(), [0, 1, 2**31], np.array([0, 1, 2**33 + 1])):
        with pytest.raises(ValueError, match="positions"):
            hooks(encoder, rj.Positions(query=positions))


@for_each("name", READERS)
def test_a_function_refuses_what_is_no_position(name):
    for wrong in NO_NUMBERS.values():
        if name == "rotary_tables(sections=)" and not isinstance(wrong, (np.ndarray, jax.Array)):
            continue  # p[None]
        with pytest.raises(ValueError, match=r"must|real numbers"):
            READERS[name][0](wrong)


@for_each("encoder", [encoder for encoder in ENCODERS if not isinstance(encoder, (rj.NoPE, rj.LogitScale))])
def test_an_encoder_refuses_positions_that_would_broadcast(encoder):
    """One position over five tokens, another number of positions, a scalar, and positions of more examples than there are."""
    if isinstance(encoder, rj.LogN) and encoder.by == "length":
        return
    for places in (jnp.arange(1), jnp.arange(6), jnp.int32(0), jnp.zeros((2, 5), jnp.int32)):
        if isinstance(encoder, READS_NO_POSITIONS) and not places.ndim:
            continue
        with pytest.raises(ValueError, match=r"tokens|axes|positions"):
            hooks(encoder, rj.Positions(query=places), tokens=5)


LENGTHS = {
    "rotary_frequencies": lambda n: rj.rotary_frequencies(8, scaling=rj.DynamicNTK(original_length=4), length=n),
    "rotary_frequencies, static": lambda n: rj.rotary_frequencies(8, length=n),
    "RoPE.frequencies": lambda n: rj.RoPE(scaling=rj.DynamicLinear(original_length=4)).frequencies(8, length=n),
    "log_n_scale": lambda n: rj.log_n_scale(n, original_length=4),
    "LogN.prepare": lambda n: rj.LogN(original_length=4, by="length").prepare({}, n, DIMS),
}


@for_each("name", LENGTHS)
def test_a_length_is_a_finite_number(name):
    for wrong in (np.nan, np.inf, -1, -0.5, 1j, True, "8", np.array([8.0, np.nan]), {"a": 1}, 2**31, 1e300):
        with pytest.raises(ValueError, match=r"(length|n,|n ).*must"):
            LENGTHS[name](wrong)
    for right in (5, np.int8(5), np.uint64(5), 5.0, np.array([4, 5], np.int16), jnp.array(5, jnp.bfloat16)):
        LENGTHS[name](right)


ONE_NUMBER = {
    "sinusoidal_shift": lambda x: rj.sinusoidal_shift(x, 4),
    "rotation_matrix": lambda x: rj.rotation_matrix(x, rj.rotary_frequencies(4)),
}


@for_each("name", ONE_NUMBER)
def test_a_function_of_one_number_refuses_several(name):
    for wrong in ([1, 2], [[1.0]], np.nan, np.inf, 1j, True, "1"):
        with pytest.raises(ValueError, match="must"):
            ONE_NUMBER[name](wrong)
    for number in (3, 3.0, np.int8(3), jnp.uint8(3), jnp.bfloat16(3)):
        np.testing.assert_array_equal(ONE_NUMBER[name](number), ONE_NUMBER[name](jnp.float32(3)))
    np.testing.assert_allclose(jax.vmap(ONE_NUMBER[name])(jnp.arange(2.0))[1], ONE_NUMBER[name](1), atol=1e-6)


WHOLE = {  # functions of a size, which is a Python int
    "sinusoidal": lambda n: rj.sinusoidal(jnp.arange(2), n),
    "sinusoidal_shift": lambda n: rj.sinusoidal_shift(1, n),
    "rotary_frequencies": rj.rotary_frequencies,
    "xpos_decay": rj.xpos_decay,
    "alibi_slopes": rj.alibi_slopes,
    "contiguous": rj.positions.contiguous,
    "context_parallel": lambda n: rj.positions.context_parallel(8, ranks=n, rank=0),
    "t5_bucket, num_buckets": lambda n: rj.t5_bucket(jnp.arange(2), bidirectional=False, num_buckets=n),
    "t5_bucket, max_distance": lambda n: rj.t5_bucket(jnp.arange(2), bidirectional=False, max_distance=n),
    "log_n_scale": lambda n: rj.log_n_scale(3, original_length=n),
}


@for_each("name", WHOLE)
def test_a_size_is_a_python_int(name):
    for wrong in (4.0, 4.5, np.nan, True, "4", None, [4], jnp.arange(4), -4, 2**31, 10**30):
        with pytest.raises(ValueError, match=r"must|needs"):
            WHOLE[name](wrong)


FACTORS = {
    "rotary_frequencies": lambda x: rj.rotary_frequencies(8, base=x),
    "sinusoidal": lambda x: rj.sinusoidal(jnp.arange(2), 4, base=x),
    "sinusoidal_shift": lambda x: rj.sinusoidal_shift(1, 4, base=x),
    "RoPE": lambda x: rj.RoPE(base=x),
    "Sinusoidal": lambda x: rj.Sinusoidal(base=x),
    "TransformerXL": lambda x: rj.TransformerXL(base=x),
    "Linear": lambda x: rj.Linear(factor=x),
    "NTK": lambda x: rj.NTK(factor=x),
    "DynamicNTK": lambda x: rj.DynamicNTK(factor=x, original_length=8),
    "YaRN": lambda x: rj.YaRN(factor=x, original_length=8),
    "Llama3": lambda x: rj.Llama3(factor=x, original_length=8),
    "LongRoPE": lambda x: rj.LongRoPE(short_factor=(x,), long_factor=(1.0,), original_length=8, factor=2.0),
    "LogitScale": lambda x: rj.LogitScale(scale=x),
    "XPos": lambda x: rj.XPos(scale_base=x),
}


@for_each("name", FACTORS)
def test_a_factor_is_a_positive_number_of_float32(name):
    for wrong in (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-320, 1e-300, 1e300, 1j, "2", None, True, 10**400):
        with pytest.raises(ValueError, match="must"):
            FACTORS[name](wrong)


def test_options_whose_frequencies_float32_does_not_hold_are_refused_before_tracing():
    for encoder in (
        rj.RoPE(base=1e-37, scaling=rj.Linear(factor=1e-30)),
        rj.RoPE(base=1e-6, scaling=rj.LongRoPE(short_factor=(1e-37,) * 4, long_factor=(1.0,) * 4, original_length=8, factor=2.0)),
        rj.RoPE(base=1.0, scaling=rj.YaRN(factor=2.0, original_length=8)),
        rj.XPos(base=1e-37, scaling=rj.Linear(factor=1e-30)),
    ):
        with pytest.raises(ValueError, match=r"float32 does not hold|needs a base above 1"):
            rj.check_requirements(encoder, DIMS)


@settings(max_examples=200)
@given(
    st.sampled_from((*INTEGERS, *REALS)),
    st.lists(st.one_of(st.integers(-(2**70), 2**70), st.floats()), min_size=1, max_size=4),
)
def test_reading_numbers_keeps_them_or_refuses_them(dtype, values):
    """Whatever the type: what is read equals what was given, as nearly as int32 or float32 can."""
    dtype = jnp.dtype(dtype)
    with np.errstate(all="ignore"):
        try:
            given_array = np.array(values).astype(dtype)
        except (OverflowError, TypeError, ValueError):
            return
    for read in (numbers, integers):
        whole = jnp.issubdtype(dtype, jnp.integer)
        exact = [int(value) if whole else float(value) for value in given_array]
        outside = any(not (INT32.min <= value <= INT32.max) if whole else not abs(value) < 2.0**128 for value in exact)
        if outside or (read is integers and not whole):
            with pytest.raises(ValueError, match="x must be"):
                read("x", given_array)
        else:
            got = read("x", given_array)
            assert got.dtype == (jnp.int32 if whole else jnp.float32)
            np.testing.assert_array_equal(np.asarray(got, np.float64), given_array.astype(got.dtype).astype(np.float64))


def test_attention_in_blocks_reads_positions_as_one_block_does():
    """Cutting positions into blocks must come after they are checked."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 8)), jnp.float32)
    order = np.arange(5)

    def attended(query, key=None, **options):
        bias = rj.ALiBi().prepare({}, None, DIMS)
        positions = rj.Positions(query=query, key=key, query_order=order, key_order=order)
        return attend(q, q, q, positions, bias=lambda *args: rj.ALiBi().bias(bias, *args), **options)

    for options in ({}, {"block_size": 2}):
        for wrong in (order + 2**33, np.full(5, np.nan), np.full(5, 1e300), order > 2):
            with pytest.raises(ValueError, match="positions must be"):
                attended(wrong, **options)
            with pytest.raises(ValueError, match="positions must be"):
                attended(order, wrong, **options)
        np.testing.assert_allclose(attended([0, 1, 2, 3, 4], **options), attended(order), atol=1e-6)


def test_narrow_lengths_do_not_overflow():
    x = jnp.full(200, 5, jnp.int32)
    example = decoder(x, jnp.uint8(200), x, jnp.uint8(200))
    assert (int(example.lengths), int(example.loss_mask.sum())) == (402, 201)
    for dtype in ("int8", "uint8", "int16", "int64"):
        batch = Copy().sample(jax.random.key(0), np.array([100], dtype), max_length=100)
        assert (batch.lengths.tolist(), int(batch.answer_mask.sum())) == ([202], 101)
    for wrong in ([9], [-1], [1.0], [np.nan], [2**33]):
        with pytest.raises(ValueError, match="lengths must"):
            Copy().sample(jax.random.key(0), np.array(wrong), max_length=3)


def test_drawn_positions_reach_the_largest_and_do_not_overflow():
    largest = 2**31 - 1
    for seed in range(50):
        lengths = np.array([1, 10])
        for draw in (rj.positions.random_offset, rj.positions.pose):
            for compiled in (False, True):
                function = jax.jit(lambda key, draw=draw: draw(key, jnp.array([1, 10]), 1000, max_position=largest))
                key = jax.random.key(seed)
                drawn = function(key) if compiled else draw(key, lengths, 1000, max_position=largest)
                assert int(drawn.min()) >= 0
                assert int(drawn.max()) < largest


def test_an_array_of_bases_is_refused_also_where_it_is_traced():
    for wrong in (jnp.array([1e4, 1e2]), jnp.array(True), jnp.array(1j)):
        with pytest.raises(ValueError, match="RoPE base must be"):
            jax.jit(lambda base: rj.rotary_frequencies(4, base=base))(wrong)


def test_far_positions_that_float32_does_not_hold_are_refused_by_xpos():
    for far in (10**6, -(10**6)):
        with pytest.raises(ValueError, match=r"XPos.* holds positions up to"):
            rj.XPos().tables(rj.XPos().frequencies(8), rj.Positions(query=np.array([0, far])))
    with pytest.raises(ValueError, match="gives frequencies that float32 does not hold"):
        rj.check_requirements(rj.Sinusoidal(base=1e-30, spacing="tensor2tensor"), rj.Dims(width=5, num_heads=1, head_dim=5))


def test_masks_are_bool_or_hold_0_and_1():
    for right in ([0, 2**20, 1], [False, True, True], [0.0, 1.0, 1.0], np.array([0, 1, 1], np.uint64)):
        assert rj.positions.from_mask(right).tolist() == [0, 0, 1]
    for wrong in ([-10_000, 0], [-np.inf, 0.0], [0.5], "011", ["0", "1"], {"a": 1}, [None, 1], 1, True, [2**40, 0], [1j]):
        with pytest.raises(ValueError, match="the mask must"):
            rj.positions.from_mask(wrong)


def test_arrays_without_an_axis_of_tokens_are_refused_by_name():
    cos, sin = rj.rotary_tables(FREQUENCIES, jnp.arange(3))
    q, positions = jnp.ones((3, 2, 8)), rj.Positions(query=jnp.arange(3))
    for wrong in (
        lambda: rj.rotate(jnp.ones((3, 8)), cos, sin),
        lambda: rj.rotate(jnp.ones(8), cos, sin),
        lambda: rj.rotate(q, cos[0], sin[0]),
        lambda: rj.Sinusoidal().embed({}, jnp.ones(16), positions),
        lambda: rj.ALiBi().bias(jnp.ones(2), q[0], q, positions),
        lambda: attend(q[0], q, q, positions),
        lambda: attend(q, q, q, jnp.arange(3)),
        lambda: rj.Positions(query=jnp.int32(3), query_order=jnp.int32(0)).visible(),
        lambda: rj.Positions(query=None).visible(),
        lambda: rj.alibi_bias(jnp.zeros((2, 3)), jnp.zeros((4, 3)), 2),
        lambda: rj.LogitScale(scale=2.0).rotate(jnp.float32(2), jnp.ones((3, 2, 8), int), q),
        lambda: rj.rotary_tables(FREQUENCIES, jnp.arange(3), sections=4),
        lambda: rj.Positions(query=jnp.arange(3), causal="no"),
        lambda: rj.Positions(query=jnp.arange(3), axes="2"),
        lambda: rj.check_requirements(rj.RoPE, DIMS),
        lambda: rj.positions.random_offset(0, jnp.array([3]), 3, max_position=9),
    ):
        with pytest.raises(ValueError, match=r"must|axes|takes"):
            wrong()


def test_no_tokens_are_fine():
    none, q = rj.Positions(query=jnp.arange(0)), jnp.ones((0, 2, 8))
    for encoder in ENCODERS:
        tables = tables_of_first_layer(encoder, encoder.init(jax.random.key(0), DIMS), none)
        assert encoder.embed(tables, jnp.ones((0, 16)), none).shape == (0, 16)
        bias = encoder.bias(tables, *encoder.rotate(tables, q, q), none)
        assert bias is None or bias.shape[-2:] == (0, 0)
    assert attend(q, q, q, none).shape == (0, 2, 8)


def test_positions_keep_their_sharding_in_any_dtype():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    for dtype in ("int16", "uint32", "float16", "int32"):
        places = jax.device_put(np.arange(8, dtype=dtype).reshape(4, 2), sharding)
        assert numbers("x", places).sharding.is_equivalent_to(sharding, 2)
