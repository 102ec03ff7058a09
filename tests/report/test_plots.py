"""The figure: what it holds, and that the same rows give the same bytes."""

import struct
import xml.etree.ElementTree as ET

import numpy as np
from rows import ODD_NAMES, ROWS, row

from looping import for_each
from rope_jax.report import plots
from rope_jax.report.statistics import curves


def test_the_same_rows_give_the_same_bytes():
    first, second = plots.by_length(curves(ROWS)), plots.by_length(curves(ROWS))
    assert first == second
    assert set(first) == {"png", "svg"}
    width, height = struct.unpack(">II", first["png"][16:24])
    assert first["png"].startswith(b"\x89PNG")
    assert width > 1000
    assert height > 500
    assert ET.fromstring(first["svg"]).tag.endswith("svg")
    assert b"<dc:date>" not in first["svg"]


def test_other_rows_give_another_picture():
    other = [r | {"exact_match": 0.5} if r["exact_match"] is not None else r for r in ROWS]
    assert plots.by_length(curves(other))["png"] != plots.by_length(curves(ROWS))["png"]


def test_a_panel_a_task_a_line_a_variant_a_band_over_seeds():
    rows = [
        row(seed, length, 1 / (1 + seed) if length > 6 else 1.0, task=task, variant=variant)
        for task in ("copy", "reverse")
        for variant in ("as-trained", "NTK 2", "NTK 4")
        for seed in (0, 1)
        for length in (6, 12, 24)
    ]
    panels = plots._draw(curves(rows)).axes
    assert [panel.get_title() for panel in panels] == ["copy", "reverse"]
    for panel in panels:
        drawn = [line for line in panel.lines if len(line.get_xdata()) == 3]
        assert len(drawn) == len(panel.collections) == 3
        for line in drawn:
            np.testing.assert_array_equal(line.get_xdata(), [6, 12, 24])
            np.testing.assert_allclose(line.get_ydata(), [1.0, 0.75, 0.75])
        low_high = panel.collections[0].get_paths()[0].vertices
        assert {0.5, 1.0} <= set(np.round(low_high[:, 1], 6))
        # told apart without colour, too
        assert len({(line.get_marker(), str(line._dash_pattern)) for line in drawn}) == 3
        [training] = [line for line in panel.lines if set(line.get_xdata()) == {12}]
        assert training.get_linestyle() != "None"


def test_the_legend_names_method_variant_and_marks():
    rows = [
        row(0, length, value, method=method, variant=variant, privileged=privileged)
        for method, variant, value, privileged in (
            ("RoPE", "as-trained", 0.5, []),
            ("RoPE", "NTK 2", 0.25, ["length"]),
            ("snake", "as-trained", 1.0, ["separators", "direction"]),
        )
        for length in (6, 12)
    ]
    figure = plots._draw(curves(rows))
    assert len([line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_marker() != "None"]) == 3
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["RoPE, as-trained", "RoPE, NTK 2 †", "snake ‡§"]
    for note in ("† uses the length", "‡ reads positions", "§ an oracle"):
        assert note in legend.get_title().get_text()


def test_any_metric_is_drawn_within_the_panel():
    for values in ((0.25, 0.5), (2.0, 40.0), (-3.0, -1.0)):
        rows = [row(0, length, 1.0, edit_distance=value) for length, value in zip((6, 12), values, strict=True)]
        [panel] = plots._draw(curves(rows, "edit_distance")).axes
        low, high = panel.get_ylim()
        assert low < min(0, *values)
        assert max(1, *values) < high
        assert panel.get_ylabel() == "edit distance"
    low, high = plots._draw(curves(ROWS)).axes[0].get_ylim()
    np.testing.assert_allclose((low, high), (-0.04, 1.1))


def test_a_length_without_a_value_is_left_out_and_others_are_drawn():
    panel = plots._draw(curves([row(0, 6, 1.0), row(1, 6, 0.5), row(0, 12, 0.25), row(1, 24, None)])).axes[0]
    [line] = [line for line in panel.lines if line.get_marker() != "None"]
    np.testing.assert_array_equal(line.get_xydata(), [[6, 0.75], [12, 0.25]])


def test_panels_wrap_and_none_is_empty():
    rows = [row(0, length, 0.5, task=task) for task in "abcd" for length in (6, 12)]
    figure = plots._draw(curves(rows))
    figure.canvas.draw()
    assert [panel.get_title() for panel in figure.axes] == ["a", "b", "c", "d"]
    corners = [(panel.bbox.x0, panel.bbox.y0) for panel in figure.axes]
    assert corners[3][0] == corners[0][0]
    assert corners[3][1] < corners[0][1] == corners[1][1] == corners[2][1]


def test_many_lines_are_told_apart_with_and_without_colour():
    styles = [plots._style(n) for n in range(30)]
    assert len({(str(s["linestyle"]), s["marker"]) for s in styles}) == 30
    assert len({(s["color"], str(s["linestyle"]), s["marker"]) for s in styles}) == 30


def test_a_diverged_curve_is_left_out_of_the_panel():
    def lines(exact):
        panel = plots._draw(curves([row(0, length, exact) for length in (6, 12, 24)])).axes[0]
        return [line for line in panel.lines if len(line.get_xdata()) == 3]

    assert len(lines(0.5)) == 1
    assert lines(None) == []


def test_nothing_runs_out_of_the_figure():
    """One panel and long names: every text lies within the picture."""
    long = "base=500.0, layout='interleaved', rotary_fraction=0.5, head_fraction=0.5, learn_base=True"
    for train_length in (6, 24):
        rows = [
            row(0, length, 0.5, method=f"RoPE({options})", privileged=["length"], train_length=train_length)
            for options in ("", long)
            for length in (6, 7, 12, 24)
        ]
        figure = plots._draw(curves(rows))
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        width, height = figure.bbox.size
        [panel], [legend] = figure.axes, figure.legends
        for text in (*legend.get_texts(), legend.get_title(), *panel.texts, *panel.get_xticklabels()):
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0, text
            assert box.x1 <= width, text
            assert box.y0 >= 0, text
            assert box.y1 <= height, text
        box = panel.texts[-1].get_window_extent(renderer)
        assert panel.bbox.x0 <= box.x0
        assert box.x1 <= panel.bbox.x1


def test_tick_labels_keep_clear_of_each_other():
    assert plots._ticks([6, 12, 13, 14, 15, 18, 24, 48], 12) == ["6", "12", "\n13", "14", "\n15", "18", "24", "48"]
    assert plots._ticks([5], 12) == ["5"]


@for_each("name", ODD_NAMES)
def test_every_name_is_drawn_as_it_is_written(name):
    """As a method, as a variant and as a task; a character that the font lacks is a box, without a warning."""
    rows = [row(0, length, 0.5, method=name, variant=name, task=name) for length in (6, 12)]
    figure = plots._draw(curves(rows))
    [legend] = figure.legends
    assert "".join(legend.get_texts()[0].get_text().split()) == "".join(f"{name}, {name}".split())
    assert figure.axes[0].get_title() == name
    images = plots.by_length(curves(rows))
    assert ET.fromstring(images["svg"]).tag.endswith("svg")
    assert images["png"].startswith(b"\x89PNG")


def test_values_that_are_not_finite_are_left_out():
    rows = [row(0, length, value) for length, value in ((6, 0.5), (12, float("inf")), (24, -float("inf")), (48, float("nan")))]
    assert plots.by_length(curves(rows)).keys() == {"png", "svg"}


def test_a_figure_of_thousands_of_lines_has_fewer_dots_per_inch():
    """A PNG has at most 65,535 dots a side; at the usual density, a legend of this height has more."""
    line = curves([row(0, length, 0.5) for length in (6, 12)])[0]
    figure = plots.Figure(figsize=(6.5, 800))
    assert plots._dots_per_inch(figure) * 800 < 2**16
    assert plots._dots_per_inch(plots._draw([line])) == 150
