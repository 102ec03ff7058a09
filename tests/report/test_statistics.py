"""From rows to curves: what is there, what is not, and why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import ROWS, row

from rope_jax.report.statistics import curves, longest_above, metrics


def test_curves_keep_every_seed():
    plain, scaled, diverged = curves(ROWS)
    np.testing.assert_array_equal(plain.values, [[1.0, 0.95, 0.25], [1.0, 0.85, 0.5]])
    assert (plain.metric, plain.task, plain.method, plain.variant) == ("exact_match", "copy", "RoPE", "as-trained")
    assert plain.seeds == (0, 1)
    np.testing.assert_array_equal(plain.complete, plain.values)
    np.testing.assert_array_equal(scaled.complete, [[0.5, 0.5, 0.5]])
    assert scaled.at(12)[1] == ("diverged", "ok")
    assert diverged.statuses == (("diverged",) * 3,)
    np.testing.assert_array_equal(curves(ROWS, "token_accuracy")[0].values, (1 + plain.values) / 2)


def test_what_is_absent_is_missing_and_nothing_else():
    """For every row that is left out, its seed and length are missing, and all other values and statuses stay."""
    whole = curves(ROWS)[0]
    for i, left_out in enumerate(ROWS[:6]):
        line = curves([r for j, r in enumerate(ROWS) if j != i])[0]
        for s, seed in enumerate(whole.seeds):
            for n, length in enumerate(whole.lengths):
                gone = (seed, length) == (left_out["seed"], left_out["length"])
                place = line.seeds.index(seed), line.lengths.index(length)
                assert line.statuses[place[0]][place[1]] == ("missing" if gone else "ok")
                np.testing.assert_equal(line.values[place], np.nan if gone else whole.values[s, n])


def test_a_metric_is_any_column_behind_the_count():
    old = row(0, 6, 1.0)
    new = row(0, 12, 1.0, edit_distance=3.5)
    assert metrics([old]) == ["exact_match", "token_accuracy"]
    assert metrics([old, new]) == ["exact_match", "token_accuracy", "edit_distance"]
    [line] = curves([old, new], "edit_distance")
    np.testing.assert_array_equal(line.values, [[np.nan, 3.5]])
    np.testing.assert_array_equal(line.unmeasured, [[True, False]])
    for unknown in ("exact", "length", "count", "edit_distance"):
        with pytest.raises(ValueError, match=f"no metric '{unknown}'; they have exact_match, token_accuracy"):
            curves([old], unknown)


def test_methods_and_tasks_are_apart_and_equal_rows_are_refused():
    rows = [row(0, 6, 1.0), row(0, 6, 0.5, method="RoPE(base=5.0)"), row(0, 6, 0.25, task_options="alphabet=2")]
    assert [(curve.task, curve.method) for curve in curves(rows)] == [
        ("copy", "RoPE"),
        ("copy", "RoPE(base=5.0)"),
        ("copy(alphabet=2)", "RoPE"),
    ]
    with pytest.raises(ValueError, match=r"the same task, method and variant \(copy, RoPE, as-trained\), seed and length"):
        curves([*rows, row(0, 6, 1.0)])


@settings(deadline=None, max_examples=100)
@given(values=st.lists(st.sampled_from([0.0, 0.5, 0.89999, 0.9, 1.0]), min_size=1, max_size=6))
def test_length_at_is_the_longest_that_holds_without_a_gap(values):
    lengths = tuple(range(10, 10 + len(values)))
    reached = 0
    for length, value in zip(lengths, values, strict=True):
        if value < 0.9:
            break
        reached = length
    assert longest_above(lengths, np.array(values)) == reached
