"""Block sizes: what is cut covers everything once, on a CPU and on an accelerator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_jax.model import sizes

MODEL = {"hidden": 256, "num_heads": 8}


@given(shortest=st.integers(1, 50), span=st.integers(0, 200))
def test_edges_cover_every_length_in_even_steps(shortest, span):
    longest = shortest + span
    edges = sizes.edges(shortest, longest)
    assert edges[-1] == longest
    steps = np.diff([shortest - 1, *edges])
    assert len(steps) <= 4
    assert len(steps) == 1 or min(steps) >= 3
    assert max(steps) - min(steps) <= 1


@given(length=st.integers(1, 5000), block=st.integers(1, 300))
def test_sections_are_whole_blocks_and_cover_every_query(length, block):
    ends = sizes.sections(length, block)
    assert ends[-1] == length
    assert len(ends) <= 4
    assert all(end % block == 0 for end in ends[:-1])
    assert all(np.diff([0, *ends]) > 0)


@given(examples=st.integers(1, 40), rows=st.integers(1, 45))
def test_cutting_keeps_every_example_once(examples, rows):
    tree = {"a": np.arange(examples), "b": np.arange(2 * examples).reshape(examples, 2)}
    found, real = jax.tree.map(np.asarray, sizes.cut(jax.tree.map(jnp.asarray, tree), rows))
    assert real.shape == found["a"].shape
    assert real.shape[1] <= rows
    np.testing.assert_array_equal(found["a"][real], tree["a"])
    np.testing.assert_array_equal(found["b"][real], tree["b"])
    assert (found["a"][~real] == examples - 1).all()


def test_a_piece_fits_in_the_cache_of_a_core_and_an_accelerator_takes_more(monkeypatch):
    for length in (10, 82, 1000, 100_000):
        few = sizes.rows(length, **MODEL)
        widest = 4 * length * max(256, 8 * min(length, 128))
        assert few == 1 or few * widest <= 2**20 < (few + 1) * widest
        with monkeypatch.context() as there:
            there.setattr(sizes, "on_cpu", lambda: False)
            assert sizes.rows(length, **MODEL) >= few
    assert sizes.query_block(82, 82, 8) == 82
    assert sizes.query_block(1000, 1000, 8) == 64


@pytest.mark.parametrize(("length", "heads"), [(4096, 8), (16_384, 8), (32_768, 16)])
def test_an_accelerators_blocks_of_scores_do_not_grow_with_the_length(monkeypatch, length, heads):
    monkeypatch.setattr(sizes, "on_cpu", lambda: False)
    block = sizes.query_block(length, length, heads)
    assert block == 128 or 4 * heads * block * length <= 2**26
