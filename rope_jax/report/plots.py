"""Accuracy by length as a figure: rows in, PNG and SVG out, the same bytes on every run. No JAX."""

import io
import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from rope_jax.report.statistics import PRESUMED, Curve, curves

# Okabe and Ito's colours, told apart by colour-blind people; yellow is left out, too faint for a line
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
# line and marker differ as well, for print in black and white
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_PANELS_A_ROW = 3
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "rope_jax", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.0}


def accuracy_by_length(rows: list[dict[str, Any]], metric: str = "exact_match") -> dict[str, bytes]:
    """Draws one panel a task, one line a variant, a band from the worst seed to the best.

    Returns:
      {"png": ..., "svg": ...}.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = _draw(rows, metric)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def _label(line: Curve) -> str:
    """What the legend calls a line: encoder, positions if not the usual ones, and variant; with marks of what is presumed."""
    mark = f" {PRESUMED['length'][0]}" if line.needs_length else ""
    return ", ".join([line.encoder, *([line.positions] if line.positions else []), line.variant + mark])


def _ticks(lengths: list[int], train_length: int) -> list[str]:
    """The lengths as tick labels; one that would run into others stands a line lower, or is left out if that is full, too."""
    room = 0.05 * np.log2(lengths[-1] / lengths[0]) if len(lengths) > 1 else 0.0
    placed: dict[int, int] = {}
    for length in (train_length, lengths[0], lengths[-1], *lengths):
        for line in (0, 1):
            free = all(abs(np.log2(length / other)) >= room for other, at in placed.items() if at == line)
            if length in lengths and length not in placed and free:
                placed[length] = line
    return ["\n" * placed[length] + str(length) if length in placed else "" for length in lengths]


def _style(n: int) -> dict[str, Any]:
    """How the n-th line looks; colours, dashes and markers have periods without a common factor."""
    return {
        "color": _COLOURS[n % len(_COLOURS)],
        "linestyle": _STYLES[n % len(_STYLES)],
        "marker": _MARKERS[n % len(_MARKERS)],
        "markerfacecolor": "none",
        "markersize": 8 - n % 5,  # so that markers of lines on top of each other are all seen
        "linewidth": 1.4,
    }


def _draw(rows: list[dict[str, Any]], metric: str) -> Figure:
    lines = curves(rows, metric)
    tasks = list(dict.fromkeys(line.task for line in lines))
    styles = {name: _style(n) for n, name in enumerate(dict.fromkeys(map(_label, lines)))}
    across = min(len(tasks), _PANELS_A_ROW)
    down = -(-len(tasks) // across)
    width = max(6.5, 1.2 + 4.3 * across)
    labels = [textwrap.fill(name, int(11 * width), subsequent_indent="    ") for name in styles]
    columns = 2 if 2 * max(map(len, labels)) < 11 * width else 1
    legend_lines = sum(label.count("\n") + 1 for label in labels) / columns
    figure = Figure(figsize=(width, 0.4 + 3.7 * down + 0.19 * legend_lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    for panel, task in zip(panels.flat, tasks, strict=False):
        _fill(panel, [line for line in lines if line.task == task], styles)
    for panel in panels.flat[len(tasks) :]:
        panel.remove()
    for panel in panels[:, 0]:
        panel.set_ylabel({"exact_match": "exact match", "token_accuracy": "token accuracy"}[metric])
    handles = [Line2D([], [], **style) for style in styles.values()]
    reading = "mean over seeds; band: from the worst seed to the best"
    marked = "".join(styles)
    notes = (f"{mark} {meaning}" for mark, meaning in PRESUMED.values() if mark in marked)
    reading += "".join("\n" + textwrap.fill(note, int(16 * width)) for note in notes)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=4, title=reading, title_fontsize=7
    )
    return figure


def _fill(panel: Axes, lines: list[Curve], styles: dict[str, dict[str, Any]]) -> None:
    """Draws one task."""
    for line in lines:
        style = styles[_label(line)]
        if len(line.ok):
            x = np.asarray(line.lengths)
            panel.plot(x, line.ok.mean(axis=0), **style)
            band = (line.ok.min(axis=0), line.ok.max(axis=0))
            panel.fill_between(x, *band, color=style["color"], alpha=0.15, linewidth=0)
    if not any(len(line.ok) for line in lines):
        panel.text(0.5, 0.5, "every seed diverged", transform=panel.transAxes, ha="center")
    lengths = sorted({length for line in lines for length in line.lengths})
    train_length = lines[0].train_length
    panel.axvline(train_length, color="0.4", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    right = lengths[0] * lengths[-1] > train_length**2  # where there is more room, on an axis of logarithms
    panel.annotate(
        f" trained up to {train_length} ",
        (train_length, 1.09),
        ha="left" if right else "right",
        va="top",
        fontsize=7,
        color="0.3",
    )
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, _ticks(lengths, train_length))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(-0.04, 1.1)
    panel.set_xlabel("length (symbols)")
    panel.set_title(lines[0].task)
    panel.grid(axis="y", color="0.9", linewidth=0.6)
