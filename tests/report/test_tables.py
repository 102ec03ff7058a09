"""Tables and statistics from rows alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_jax.report.statistics import curves, longest_above
from rope_jax.report.tables import latex, markdown


def row(seed, length, exact, **other):
    made = {
        "task": "copy",
        "task_options": "",
        "encoder": "RoPE",
        "encoder_options": "",
        "policy": "Contiguous",
        "policy_options": "",
        "policy_presumes": [],
        "variant": "as-trained",
        "variant_options": "",
        "needs_length": False,
        "seed": seed,
        "train_steps": 2000,
        "train_length": 12,
        "length": length,
        "status": "ok" if exact is not None else "diverged",
        "count": 512,
        "exact_match": exact,
        "token_accuracy": None if exact is None else (1 + exact) / 2,
    }
    return made | other


ROWS = [
    *(
        row(seed, length, value)
        for seed, values in ((0, (1.0, 0.95, 0.25)), (1, (1.0, 0.85, 0.5)))
        for length, value in zip((6, 12, 24), values, strict=True)
    ),
    *(
        row(seed, length, value, variant="NTK_2", needs_length=True)
        for seed, value in ((0, None), (1, 0.5))
        for length in (6, 12, 24)
    ),
    *(row(0, length, None, task="reverse", encoder="Learned", encoder_options="max_length=64") for length in (6, 12, 24)),
]


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]


def test_markdown_gives_mean_range_and_length_at():
    exact, tokens = markdown(ROWS).split("### Token accuracy")
    header, _, plain, scaled, diverged = cells(exact)
    assert header == ["task", "encoder", "variant", "0.5x (6)", "1x (12)", "2x (24)", "L@0.9"]
    assert plain == ["copy", "RoPE", "as-trained", "1.000", "0.900 (0.850-0.950)", "0.375 (0.250-0.500)", "6-12"]
    assert scaled == ["copy", "RoPE", "NTK_2 †", "0.500 1 of 2", "0.500 1 of 2", "0.500 1 of 2", "0 1 of 2"]
    assert diverged == ["reverse", "Learned(max_length=64)", "as-trained", "diverged", "diverged", "diverged", "diverged"]
    assert cells(tokens)[2][3:] == ["1.000", "0.950 (0.925-0.975)", "0.688 (0.625-0.750)"]
    assert "† presumes that the length of the answer is known" in tokens
    assert "over 2 seeds (0, 1)," in tokens
    assert "512 test examples" in tokens


def test_no_note_is_given_that_nothing_calls_for():
    text = markdown([row(0, 6, 1.0)])
    assert "†" not in text
    assert "diverged" not in text


def test_latex_has_the_same_cells_escaped():
    text = latex(ROWS)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.count(r"\toprule") == 2
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [cell.strip() for cell in rows[2].removesuffix(r"\\").split("&")] == [
        "copy", "RoPE", r"NTK\_2 $\dagger$", "0.500 1 of 2", "0.500 1 of 2", "0.500 1 of 2", "0 1 of 2",
    ]  # fmt: skip
    assert r"Learned(max\_length=64)" in text
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert "†" not in body
    assert "_2" not in body.replace(r"\_2", "")


def test_curves_keep_every_seed():
    plain, scaled, _ = curves(ROWS)
    np.testing.assert_array_equal(plain.values, [[1.0, 0.95, 0.25], [1.0, 0.85, 0.5]])
    assert plain.seeds == (0, 1)
    assert len(plain.ok) == 2
    np.testing.assert_array_equal(scaled.ok, [[0.5, 0.5, 0.5]])


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


def test_methods_that_differ_in_options_are_apart():
    rows = [row(0, 6, 1.0), row(0, 6, 0.5, encoder_options="base=5.0"), row(0, 6, 0.25, task_options="alphabet=2")]
    assert [(curve.task, curve.encoder) for curve in curves(rows)] == [
        ("copy", "RoPE"),
        ("copy", "RoPE(base=5.0)"),
        ("copy(alphabet=2)", "RoPE"),
    ]


def test_positions_have_a_column_where_they_differ():
    rows = [
        row(0, 6, 1.0),
        row(0, 6, 0.5, policy="Randomized", policy_options="max_position=9"),
        row(0, 6, 0.25, policy="Grid", policy_options="order='snake'", policy_presumes=["separators", "direction"]),
        row(0, 12, 1.0, count=64),
    ]
    text = markdown(rows)
    header, _, *body = cells(text.split("### Token")[0])
    assert header[:4] == ["task", "encoder", "positions", "variant"]
    assert [line[2] for line in body] == ["Contiguous", "Randomized(max_position=9)", "Grid(order='snake') ‡§"]
    assert "‡ reads positions off the separators" in text
    assert "§ an oracle" in text
    assert "512 test examples a length, 64 from length 12 on" in text
    assert r"Grid(order='snake') $\ddagger$\S{}" in latex(rows)
    assert "positions" not in cells(markdown(rows[:1]))[0]
    told = row(0, 6, 1.0, variant="on a grid", variant_policy="Grid", policy_presumes=["separators"])
    assert cells(markdown([*rows[:1], told]))[3][2:4] == ["Contiguous, run on Grid ‡", "on a grid"]


def test_rows_older_than_policies_are_contiguous():
    old = {name: value for name, value in row(0, 6, 1.0).items() if not name.startswith("policy")}
    assert markdown([old]) == markdown([row(0, 6, 1.0)])


def test_a_bar_in_a_name_does_not_break_the_table():
    assert r"a\|b" in markdown([row(0, 6, 1.0, variant="a|b")])


@pytest.mark.parametrize("order", [1, -1])
def test_columns_are_in_order_of_length(order):
    header, *_ = cells(markdown([row(0, length, 1.0) for length in (6, 12, 24)[::order]]))
    assert header[3:6] == ["0.5x (6)", "1x (12)", "2x (24)"]
