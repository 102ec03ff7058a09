"""Block sizes of attention: sections cover every query once, and blocks keep the memory budgets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rope_jax.model import block_sizes


@given(num_queries=st.integers(1, 5000), block_size=st.integers(1, 300))
def test_sections_are_whole_blocks_and_cover_every_query(num_queries, block_size):
    ends = block_sizes.section_ends(num_queries, block_size)
    assert ends[-1] == num_queries
    assert len(ends) <= 4
    assert all(end % block_size == 0 for end in ends[:-1])
    assert all(np.diff([0, *ends]) > 0)


def test_a_block_of_scores_does_not_grow_with_the_length(monkeypatch):
    assert block_sizes.query_block_size(82, 82, 8) == 82
    assert block_sizes.query_block_size(1000, 1000, 8) == 64
    monkeypatch.setattr(block_sizes, "on_cpu", lambda: False)
    for length, heads in ((4096, 8), (16_384, 8), (32_768, 16)):
        for budget in (2**26, 2**31):
            size = block_sizes.query_block_size(length, length, heads, budget=budget)
            assert size == 128 or 4 * heads * size * length <= budget < 8 * heads * size * length
        assert block_sizes.query_block_size(length, length, heads) == size  # alone on a device
