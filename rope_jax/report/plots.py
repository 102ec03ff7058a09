"""A metric by length as a figure: curves in, PNG and SVG out, the same bytes on every run. No JAX."""

import io
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from rope_jax.report import cells, labels
from rope_jax.report.statistics import Curve, all_lengths

# Okabe and Ito's colours, which colour-blind people can distinguish; yellow is left out, too faint for a line
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
# line and marker differ as well, for print in black and white
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MOST_PANELS_ACROSS = 3
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "rope_jax",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.parse_math": False,  # a $ in a name is a $
}
_DOTS_PER_INCH = 150
_MOST_DOTS = 2**16 - 1  # of a side of a PNG, in matplotlib


def by_length(lines: Sequence[Curve]) -> dict[str, bytes]:
    """Draws a panel for each task and a line for each method and variant: the mean over seeds, in a band from worst to best.

    Args:
      lines: the curves of one metric, from `statistics.curves`.

    Returns:
      {"png": ..., "svg": ...}.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the font has no such character: a box is drawn
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = _draw(lines)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=_dots_per_inch(figure), metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def _dots_per_inch(figure: Figure) -> int:
    """The density of the PNG: the usual one, or what the largest image allows."""
    return int(min(_DOTS_PER_INCH, _MOST_DOTS // max(figure.get_size_inches())))


def _ticks(lengths: list[int], train_length: int) -> list[str]:
    """The lengths as tick labels on two levels; a label that would overlap others goes to the lower level, or is left out."""
    distance = 0.05 * np.log2(lengths[-1] / lengths[0]) if len(lengths) > 1 else 0.0
    levels: dict[int, int] = {}
    for length in (train_length, lengths[0], lengths[-1], *lengths):
        for level in (0, 1):
            free = all(abs(np.log2(length / other)) >= distance for other, taken in levels.items() if taken == level)
            if length in lengths and length not in levels and free:
                levels[length] = level
    return ["\n" * levels[length] + str(length) if length in levels else "" for length in lengths]


def _style(n: int) -> dict[str, Any]:
    """How the n-th line looks; colours, dashes and markers have periods without a common factor."""
    return {
        "color": _COLOURS[n % len(_COLOURS)],
        "linestyle": _STYLES[n % len(_STYLES)],
        "marker": _MARKERS[n % len(_MARKERS)],
        "markerfacecolor": "none",
        "markersize": 8 - n % 5,  # so that the markers of lines on top of each other are all visible
        "linewidth": 1.4,
    }


def _draw(lines: Sequence[Curve]) -> Figure:
    texts = [labels.marked(name, line.privileged) for name, line in zip(cells.short_names(lines), lines, strict=True)]
    tasks = list(dict.fromkeys(line.task for line in lines))
    styles = {text: _style(n) for n, text in enumerate(dict.fromkeys(texts))}
    across = min(len(tasks), _MOST_PANELS_ACROSS)
    down = -(-len(tasks) // across)
    width = max(6.5, 1.2 + 4.3 * across)
    wrapped = [textwrap.fill(text, int(11 * width), subsequent_indent="    ") for text in styles]
    columns = 2 if 2 * max(map(len, wrapped)) < 11 * width else 1
    legend_lines = sum(text.count("\n") + 1 for text in wrapped) / columns
    figure = Figure(figsize=(width, 0.4 + 3.7 * down + 0.19 * legend_lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    for panel, task in zip(panels.flat, tasks, strict=False):
        _fill(panel, [(line, styles[text]) for line, text in zip(lines, texts, strict=True) if line.task == task])
    for panel in panels.flat[len(tasks) :]:
        panel.remove()
    _set_heights(panels.flat[0], lines)
    for panel in panels[:, 0]:
        panel.set_ylabel(labels.axis(lines[0].metric))
    handles = [Line2D([], [], **style) for style in styles.values()]
    notes = labels.legend(name for line in lines for name in line.privileged)
    heading = "\n".join(
        ["mean over seeds; band: from the worst seed to the best", *(textwrap.fill(n, int(16 * width)) for n in notes)]
    )
    figure.legend(
        handles,
        wrapped,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=4,
        title=heading,
        title_fontsize=7,
    )
    return figure


def _set_heights(panel: Axes, lines: Sequence[Curve]) -> None:
    """Sets the range of values, which all panels share: 0 to 1 for fractions, and what the values need for other metrics."""
    known = np.concatenate([line.values[np.isfinite(line.values)] for line in lines])
    low, high = (min(0.0, known.min()), max(1.0, known.max())) if known.size else (0.0, 1.0)
    panel.set_ylim(low - 0.04 * (high - low), high + 0.1 * (high - low))


def _fill(panel: Axes, lines: list[tuple[Curve, dict[str, Any]]]) -> None:
    """Draws one task."""
    for line, style in lines:
        drawn = [(length, values) for length in line.lengths if len(values := line.at(length)[0])]
        if drawn:
            lengths = [length for length, _ in drawn]
            panel.plot(lengths, [values.mean() for _, values in drawn], **style)
            band = ([values.min() for _, values in drawn], [values.max() for _, values in drawn])
            panel.fill_between(lengths, *band, color=style["color"], alpha=0.15, linewidth=0)
    if not panel.lines:
        panel.text(0.5, 0.5, "no seed has a value", transform=panel.transAxes, ha="center")
    lengths = all_lengths(line for line, _ in lines)
    for train_length in sorted({line.train_length for line, _ in lines}):
        panel.axvline(train_length, color="0.4", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        right = lengths[0] * lengths[-1] > train_length**2  # where there is more room, on an axis of logarithms
        panel.annotate(
            f" trained up to {train_length} ",
            (train_length, 0.99),
            xycoords=("data", "axes fraction"),
            ha="left" if right else "right",
            va="top",
            fontsize=7,
            color="0.3",
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, _ticks(lengths, lines[0][0].train_length))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("length (symbols)")
    panel.set_title(lines[0][0].task)
    panel.grid(axis="y", color="0.9", linewidth=0.6)
