"""Tables and their notes from rows alone."""

import re

from rows import ODD_NAMES, ROWS, of_metrics, row

from looping import for_each
from rope_jax.report.tables import latex, markdown


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]


def test_markdown_gives_mean_range_and_length_at():
    exact, tokens = markdown(of_metrics(ROWS)).split("### Token accuracy")
    header, _, plain, scaled, diverged = cells(exact)
    assert header == ["task", "method", "variant", "0.5x (6)", "1x (12)", "2x (24)", "L@0.9"]
    assert plain == ["copy", "RoPE", "as-trained", "1.000", "0.900 (0.850-0.950)", "0.375 (0.250-0.500)", "6-12"]
    assert scaled == ["copy", "RoPE", "NTK_2 †", "0.500 1 of 2", "0.500 1 of 2", "0.500 1 of 2", "0 1 of 2"]
    assert diverged == ["reverse", "Learned(max_length=64)", "as-trained", *["diverged"] * 4]
    assert cells(tokens)[2][3:] == ["1.000", "0.950 (0.925-0.975)", "0.688 (0.625-0.750)"]
    assert "† uses the length of the answer" in tokens
    assert "over 1 or 2 seeds (0, 1)," in tokens
    assert "512 test examples" in tokens
    assert "the others diverged." in tokens
    assert "missing" not in tokens


def test_what_has_no_row_is_missing_and_not_diverged():
    """Seeds and lengths without a row, alone and beside a seed that diverged, and a length that only other methods have."""
    rows = [
        row(0, 6, 1.0), row(1, 6, 0.5), row(0, 12, 1.0), row(0, 24, None),
        row(0, 6, 0.25, method="ALiBi"),
    ]  # fmt: skip
    text = markdown(of_metrics(rows, "exact_match"))
    _, _, rope, alibi = cells(text)
    assert rope[3:] == ["0.750 (0.500-1.000)", "1.000 1 of 2", "1 diverged, 1 missing", "1 diverged, 1 missing"]
    assert alibi[3:] == ["0.250", "missing", "missing", "0"]
    assert "the others diverged or have no row (“missing”)." in text


def test_a_metric_that_older_rows_lack_is_empty():
    rows = [*(row(0, length, 1.0, end_error=None) for length in (6, 12)), row(0, 6, 1.0, method="new", end_error=0.25)]
    text = markdown(of_metrics(rows, "end_error"))
    assert [line[3:] for line in cells(text)[2:]] == [["", ""], ["0.250", "missing"]]
    assert text.startswith("### End error: the fraction of test examples in which EOS is missed")
    assert "An empty cell means that the metric did not exist yet" in text


def test_any_metric_has_a_table():
    rows = [row(0, length, 1.0, edit_distance=2.0 * length) for length in (6, 12)]
    text = markdown(of_metrics(rows, "edit_distance"))
    assert text.startswith("### Edit distance\n")
    assert cells(text)[2][3:] == ["12.000", "24.000"]
    assert "L@0.9" not in text


def test_notes_hold_for_every_row():
    text = markdown(of_metrics([row(0, 6, 1.0)]))
    for nothing_calls_for in ("†", "diverged", "missing", "1 of 2", "empty"):
        assert nothing_calls_for not in text
    assert "over 1 seed (0)," in text
    rows = [
        *(row(seed, 6, 1.0) for seed in (0, 1)),
        *(row(seed, 6, 1.0, method="b", train_steps=500) for seed in (0, 1, 7)),
        *(row(0, length, 1.0, method="c", count=64) for length in (12, 24)),
    ]
    text = markdown(of_metrics(rows))
    assert "for 500 or 2000 steps" in text
    assert "over 1, 2 or 3 seeds (0, 1, 7)," in text
    assert "512 test examples of each length, 64 from length 12 on" in text
    text = markdown(of_metrics([*rows, row(0, 6, 1.0, method="d", train_length=6, count=32)]))
    assert "A column is a test length in symbols of x; the training length is 6 or 12." in text
    assert "32 or 512 test examples of each length, 64 from length 12 on" in text
    assert cells(text)[0][3:6] == ["6", "12", "24"]


def test_latex_has_the_same_cells_escaped():
    rows = [
        *ROWS,
        *(row(0, length, 0.5, method="50% of a_b & #1 …", privileged=["separators", "direction"]) for length in (6, 12, 24)),
    ]
    text = latex(of_metrics(rows))
    for once_each in (r"\begin{tabular}", r"\end{tabular}", r"\toprule", r"\resizebox{"):
        assert text.count(once_each) == 2
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [cell.strip() for cell in lines[2].removesuffix(r"\\").split("&")] == [
        "copy", "RoPE", r"NTK\_2 $\dagger$", "0.500 1 of 2", "0.500 1 of 2", "0.500 1 of 2", "0 1 of 2",
    ]  # fmt: skip
    assert r"Learned(max\_length=64)" in text
    assert r"50\% of a\_b \& \#1 \ldots{} & as-trained $\ddagger$\S{} &" in " ".join(text.split())
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.isascii()
    assert body.count("{") == body.count("}")


def test_marks_stand_behind_the_variant():
    rows = [
        row(0, 6, 1.0),
        row(0, 6, 0.25, method="snake", privileged=["separators", "direction"]),
        row(0, 6, 0.5, variant="on a grid", privileged=["separators", "hint"]),
    ]
    text = markdown(of_metrics(rows, "exact_match"))
    assert [line[1:3] for line in cells(text)[2:]] == [
        ["RoPE", "as-trained"],
        ["snake", "as-trained ‡§"],
        ["RoPE", "on a grid ‡[hint]"],
    ]
    assert "‡ reads positions off the separators" in text
    assert "§ an oracle" in text
    assert "[hint] uses privileged information called hint." in text
    assert "†" not in text


def test_a_bar_in_a_name_does_not_break_the_table():
    assert r"a\|b" in markdown(of_metrics([row(0, 6, 1.0, variant="a|b", method="c|d")]))


def test_columns_are_in_order_of_length():
    for order in (1, -1):
        header, *_ = cells(markdown(of_metrics([row(0, length, 1.0) for length in (6, 12, 24)[::order]])))
        assert header[3:6] == ["0.5x (6)", "1x (12)", "2x (24)"]


def test_notes_say_which_test_examples_repeat_or_were_seen():
    def note(*rows):
        return markdown(of_metrics(rows, "exact_match")).splitlines()[-1]

    short = {"distinct": 0.25, "seen": 0.605}
    rows = [row(0, 12, 1.0, **short), row(0, 24, 0.5, distinct=1.0, seen=0.0)]
    count = rows[0]["count"]
    text = note(*rows)
    assert f"Some test examples are equal: copy at length 12 ({count // 4} different ones)." in text
    assert "Training is expected to have drawn some of the test examples too: 60.5% of copy at length 12." in text
    unknown = note(row(0, 12, 1.0, distinct=1.0, seen=None))
    assert "Training may have drawn some of the test examples too: copy at length 12." in unknown
    for silent in (row(0, 12, 1.0), row(0, 12, 1.0, distinct=1.0, seen=0.004)):  # earlier rows have neither column
        assert "Training" not in note(silent)
        assert "equal" not in note(silent)


@for_each("name", ODD_NAMES)
def test_markup_in_names_is_escaped(name):
    """In Markdown and LaTeX a cell shows the name as it is written."""
    curves = of_metrics([row(0, 12, 0.5, method=name)], "exact_match")
    [line] = [line for line in markdown(curves).splitlines() if line.startswith("| copy")]
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)
    assert len(cells) == len(markdown(curves).splitlines()[2].split("|"))
    assert re.sub(r"\\(.)", r"\1", line.split(" | ", 1)[1]).startswith(name)
    [line] = [line for line in latex(curves).splitlines() if line.lstrip().startswith("copy")]
    bare = re.sub(r"\\[#$%&_{}]|\\(textbackslash|textasciitilde)\{\}|\\\^\{\}|\\ensuremath\{[<>]\}", "", line.rstrip("\\"))
    assert not set(bare) & set("#$%_{}^~\\")
    assert bare.count("&") == len(cells) - 3
