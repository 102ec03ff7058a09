"""Random calls of the library, of which many are wrong: each gives the right value, or a ValueError of ours."""

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_values import INT32, INTEGERS, NO_NUMBERS, READERS, hooks, reads_positions

import rope_jax as rj
from examples import DIMS, ENCODERS, MAPS
from rope_jax.model.attention import attend

CALLS = 1000
JUNK = (*NO_NUMBERS.values(), np.nan, -np.inf, 1j, True, "3", None, [], [[1], [2, 3]], {"a": 1}, 2**31, -(2**40), 10**30, 1e300)
ENCODERS_OF_POSITIONS = [encoder for encoder in ENCODERS if reads_positions(encoder)]


def integers(rng, size=3):
    """A random array of a random integer type, over all of its range or near 0."""
    dtype = np.dtype(str(rng.choice(INTEGERS)))
    info = np.iinfo(dtype)
    if rng.random() < 0.5:
        return rng.integers(max(info.min, -9), 9, size).astype(dtype)
    return rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)


def junk(rng):
    return JUNK[rng.integers(len(JUNK))]


# each makes a call from a random generator: (what it is, function without arguments, check of its result or None for an error)


def reader(rng):
    name = str(rng.choice([name for name in READERS if "sections" not in name]))
    function, expected = READERS[name]
    given = integers(rng)
    fits = all(INT32.min <= int(value) <= INT32.max for value in given)
    if name == "contiguous" or not fits:
        fits = fits and all(int(value) <= INT32.max for value in given)
    if name == "grid":
        given[0] = 3
        fits = all(INT32.min <= int(value) <= INT32.max for value in given)
    if name in ("grid", "from_segment_ids") and fits:
        return f"{name} of {given!r}", lambda: function(given), lambda got: None
    right = [int(value) for value in given]

    def check(got):
        np.testing.assert_allclose(got, expected(right), atol=4e-6, rtol=3e-7)

    return f"{name} of {given!r}", lambda: function(given), check if fits else None


def reader_of_junk(rng):
    name, wrong = str(rng.choice([name for name in READERS if "sections" not in name])), junk(rng)
    if isinstance(wrong, list) and not wrong:
        return f"{name} of no positions", lambda: READERS[name][0](np.zeros(0, np.int32)), lambda got: None
    if wrong is None and "segment" in name:
        return f"{name} of None, which is one document", lambda: READERS[name][0](None), "either", lambda got: None
    # what is a fine number, only without an axis, is refused by all but the offset of `contiguous`
    return f"{name} of {wrong!r}", lambda: READERS[name][0](wrong), None


def encoder_of_tokens(rng):
    encoder = ENCODERS_OF_POSITIONS[rng.integers(len(ENCODERS_OF_POSITIONS))]
    tokens, places = int(rng.integers(1, 5)), int(rng.integers(0, 5))
    batch = () if rng.random() < 0.7 else (int(rng.integers(1, 3)),)
    positions = rng.integers(0, 30, (*batch, places)).astype(str(rng.choice(INTEGERS)))
    fits = places == tokens and not batch
    return (
        f"{encoder} for {tokens} tokens at {positions!r}",
        lambda: hooks(encoder, rj.Positions(query=positions), tokens),
        (lambda got: None) if fits else None,
    )


def encoder_of_junk(rng):
    encoder, wrong = ENCODERS_OF_POSITIONS[rng.integers(len(ENCODERS_OF_POSITIONS))], junk(rng)
    return f"{encoder} at {wrong!r}", lambda: hooks(encoder, rj.Positions(query=wrong)), None


def frequencies(rng):
    scaling = (None, *MAPS)[rng.integers(len(MAPS) + 1)]
    base = float(10.0 ** rng.uniform(-60, 60)) if rng.random() < 0.7 else junk(rng)
    length = [None, int(rng.integers(0, 10**6)), integers(rng, 2), junk(rng)][rng.choice(4, p=[0.4, 0.3, 0.2, 0.1])]

    def check(got):
        assert got.inv_freq.shape[-1] == 4
        assert np.isfinite(got.inv_freq).all()
        if scaling is None:
            right = np.float64(base) ** (-np.arange(4) / 4)
            np.testing.assert_allclose(got.inv_freq, right, rtol=1e-6, atol=1.2e-38)

    made = f"frequencies of {scaling} with base {base!r} for length {length!r}"
    return made, lambda: rj.rotary_frequencies(8, base=base, scaling=scaling, length=length), "either", check


def drawn(rng):
    names = ("random_offset", "randomized", "random_float", "pose")
    name = str(rng.choice(names))
    length, size = int(rng.integers(0, 6)), int(rng.integers(0, 6))
    most = [int(rng.integers(-2, 20)), float(rng.uniform(-1, 9)), junk(rng)][rng.choice(3, p=[0.7, 0.2, 0.1])]
    lengths = np.array([length], str(rng.choice(INTEGERS))) if rng.random() < 0.8 else junk(rng)

    def check(got):
        got = np.asarray(got)
        assert got.shape == (1, size)
        assert got.dtype == (np.float32 if name == "random_float" else np.int32)
        kept = got[0, :length]
        assert ((kept >= 0) & (kept < most)).all()
        assert (np.diff(kept) >= (0 if name == "random_float" else 1)).all()

    function = getattr(rj.positions, name)
    made = f"{name} of length {lengths!r}, size {size}, max_position {most!r}"
    return made, lambda: function(jax.random.key(0), lengths, size, max_position=most), "either", check


def attention(rng):
    sizes = rng.integers(1, 4, 8)
    q, k, v = (np.ones(shape, np.float32) for shape in ((sizes[0], 2, 4), (sizes[1], 2, sizes[2]), (sizes[3], 2, 4)))
    block = [None, int(rng.integers(-1, 3)), junk(rng)][rng.choice(3, p=[0.4, 0.4, 0.2])]
    positions = rj.Positions(query=jnp.arange(sizes[4]))
    fits = sizes[0] == sizes[1] == sizes[3] == sizes[4] and sizes[2] == 4
    fits = fits and (block is None or (type(block) is int and 1 <= block < 2**31))

    def check(got):
        np.testing.assert_allclose(got, np.ones_like(q), rtol=1e-6)

    made = f"attend to {q.shape}, {k.shape}, {v.shape} at {sizes[4]} positions, block_size {block!r}"
    return made, lambda: attend(q, k, v, positions, block_size=block), check if fits else None


def option(rng):
    encoder = (*ENCODERS, *MAPS)[rng.integers(len(ENCODERS) + len(MAPS))]
    kind, names = type(encoder), [name for name in getattr(encoder, "__dataclass_fields__", {}) if name != "encoders"]
    if not names:
        return f"{kind.__name__}", lambda: kind, lambda got: None
    name, wrong = str(rng.choice(names)), junk(rng)
    options = {field: getattr(encoder, field) for field in names} | {name: wrong}

    def check(got):
        hash(got)
        rj.check_requirements(got if isinstance(got, rj.Encoder) else rj.RoPE(scaling=got), DIMS)

    return f"{kind.__name__} with {name}={wrong!r}", lambda: kind(**options), "either", check


MAKERS = (reader, reader_of_junk, encoder_of_tokens, encoder_of_junk, frequencies, drawn, attention, option)


@pytest.mark.slow
def test_random_calls_give_the_right_value_or_an_error_that_says_why():
    rng, counts, wrong = np.random.default_rng(0), {"value": 0, "error": 0}, []
    for _ in range(CALLS):
        made, call, *expectation = MAKERS[rng.integers(len(MAKERS))](rng)
        expected, check = expectation if len(expectation) == 2 else ("value" if expectation[0] else "error", expectation[0])
        try:
            got = call()
            if expected == "error":
                wrong.append(f"{made}: no error, got {got!r:.200}")
            else:
                check(got)
            counts["value"] += 1
        except ValueError as error:
            counts["error"] += 1
            if expected == "value":
                wrong.append(f"{made}: refused: {error}")
            elif "rope_jax" not in traceback.extract_tb(error.__traceback__)[-1].filename:
                wrong.append(f"{made}: an error of another library: {error}")
        except Exception as error:
            wrong.append(f"{made}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {CALLS}:\n" + "\n".join(wrong)
    assert min(counts.values()) > CALLS / 5, counts
