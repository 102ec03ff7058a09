"""A short form of the tables for a terminal: means only, fitted to its width."""

from collections.abc import Mapping

from rope_jax.report import cells, labels
from rope_jax.report.statistics import LENGTH_AT_METRIC, Curve, all_lengths

_GAP = 2  # spaces between columns
_SHORTEST_NAME = 12  # characters that are left of a name that is cut
_TEXTS = 3  # columns of text: task, method, variant


def table(curves: Mapping[str, list[Curve]], width: int) -> str:
    """The means of each metric, as text.

    Args:
      curves: of each metric.
      width: columns of the terminal. Lengths in the middle are left out until the table fits; then long names are cut.
    """
    sections = []
    for metric, lines in curves.items():
        shown, left_out = all_lengths(lines), []
        trained = {line.train_length for line in lines}
        while _width(rows := _rows(metric, lines, shown)) > width:
            droppable = [length for length in shown[1:-1] if length not in trained]
            if not droppable:
                break
            left_out.append(droppable[len(droppable) // 2])
            shown.remove(left_out[-1])
        remark = f"\n(lengths not shown here: {', '.join(map(str, sorted(left_out)))})" if left_out else ""
        sections.append(f"{labels.axis(metric)} by length, mean over seeds\n\n{_aligned(rows, width)}{remark}\n")
    return "\n".join([*sections, *labels.legend(name for lines in curves.values() for line in lines for name in line.privileged)])


def _rows(metric: str, lines: list[Curve], lengths: list[int]) -> list[list[str]]:
    """The header and the rows."""
    with_length_at = metric == LENGTH_AT_METRIC
    header = ["task", "method", "variant", *map(str, lengths), *(["L@0.9"] if with_length_at else [])]
    return [
        header,
        *(
            [
                *cells.names(line),
                *(cells.mean(line, length) for length in lengths),
                *([cells.length_at(line)] if with_length_at else []),
            ]
            for line in lines
        ),
    ]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _width(rows: list[list[str]]) -> int:
    widths = _widths(rows)
    return sum(widths) + _GAP * (len(widths) - 1)


def _aligned(rows: list[list[str]], width: int) -> str:
    """Lines of columns, names to the left and numbers to the right; the longest names are cut where the width requires it."""
    widths = _widths(rows)
    while sum(widths) + _GAP * (len(widths) - 1) > width and max(widths[:_TEXTS]) > _SHORTEST_NAME:
        widths[widths.index(max(widths[:_TEXTS]))] -= 1
    lines = []
    for row in rows:
        texts = [_cut(text, size).ljust(size) for text, size in zip(row[:_TEXTS], widths, strict=False)]
        numbers = [text.rjust(size) for text, size in zip(row[_TEXTS:], widths[_TEXTS:], strict=True)]
        lines.append((" " * _GAP).join([*texts, *numbers]).rstrip())
    return "\n".join(lines)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
