"""The short table: as wide as the terminal at most, and honest about what it leaves out."""

import re

from rich.cells import cell_len
from rows import ODD_NAMES, ROWS, of_metrics, row

from rope_jax.report.terminal import table


def test_means_with_names_and_marks():
    text = table(of_metrics(ROWS), 200)
    exact, tokens, mark = text.split("\n\n", 5)[1], text.split("\n\n", 5)[3], text.split("\n\n")[-1]
    assert [re.split(r"  +", line) for line in exact.splitlines()] == [
        ["task", "method", "6", "12", "24", "L@0.9"],
        ["copy", "RoPE, as-trained", "1.000", "0.900", "0.375", "6-12"],
        ["copy", "RoPE, NTK_2", "†", "0.500 1 of 2", "0.500 1 of 2", "0.500 1 of 2", "0 1 of 2"],
        ["reverse", "Learned(max_length=64)", "diverged", "diverged", "diverged", "diverged"],
    ]
    assert re.split(r"  +", tokens.splitlines()[1]) == ["copy", "RoPE, as-trained", "1.000", "0.950", "0.688"]
    assert mark.startswith("† uses the length of the answer")
    assert "not shown" not in text


def test_it_fits_any_terminal():
    """At every width from 60 columns on; shortest, longest and trained lengths stay, and what is left out is named."""
    lengths = (3, 6, 12, 13, 14, 15, 18, 24, 48, 1200)
    rows = [
        row(0, length, 0.5, method=method, task=task, privileged=["length"])
        for task in ("copy", "reverse(alphabet=4, end_marker=True)")
        for method in ("RoPE", "a method with a long name indeed")
        for length in lengths
    ]
    before = 0
    for width in range(60, 200):
        text = table(of_metrics(rows, "exact_match"), width)
        assert max(map(len, text.splitlines())) <= width
        assert sum("†" in line for line in text.splitlines()) == 4 + 1  # names may be cut, marks are not
        header = next(line for line in text.splitlines() if line.startswith("task")).split()
        shown = [int(word) for word in header[2:-1]]
        remark = re.search(r"\(lengths not shown here: (.*?)\)", " ".join(text.split()))
        left_out = [int(length) for length in remark[1].split(", ")] if remark else []
        assert sorted([*shown, *left_out]) == list(lengths)
        assert {3, 12, 1200} <= set(shown)
        assert len(shown) >= before
        before = len(shown)
    assert before == len(lengths)


def test_columns_stand_below_each_other_whatever_the_width_of_a_character():
    rows = [row(0, length, 0.5, method=name) for name in ODD_NAMES for length in (6, 12)]
    for width in (60, 80, 300):
        lines = [line for line in table(of_metrics(rows, "exact_match"), width).splitlines() if line.startswith("copy")]
        assert len(lines) == len(ODD_NAMES)
        assert len({cell_len(line) for line in lines}) == 1
        assert cell_len(lines[0]) <= width
