"""A short form of the tables for a terminal: means only, fitted to its width."""

import textwrap
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from rope_jax.report import cells, labels
from rope_jax.report.statistics import LENGTH_AT_METRIC, Curve, all_lengths

_GAP = 2  # spaces between columns
_SHORTEST_NAME = 12  # characters that are left of a name that is cut


def table(curves: Mapping[str, list[Curve]], width: int) -> str:
    """The means of each metric, as text.

    Args:
      curves: of each metric.
      width: columns of the terminal. Lengths in the middle are left out until the table fits; then long names are cut.
    """
    sections = []
    for metric, lines in curves.items():
        lengths = all_lengths(lines)
        shown, trained = list(lengths), {line.train_length for line in lines}
        while _width(_widths(rows := _rows(metric, lines, shown))) > width:
            droppable = [length for length in shown[1:-1] if length not in trained]
            if not droppable:
                break
            shown.remove(droppable[len(droppable) // 2])
        left_out = ", ".join(str(length) for length in lengths if length not in shown)
        remark = textwrap.fill(f"(lengths not shown here: {left_out})", width) + "\n" if left_out else ""
        sections.append(f"{labels.axis(metric)} by length, mean over seeds\n\n{_aligned(rows, width)}\n{remark}")
    marks = labels.legend(name for lines in curves.values() for line in lines for name in line.privileged)
    return "\n".join([*sections, *(textwrap.fill(mark, width) for mark in marks)])


def _rows(metric: str, lines: Sequence[Curve], lengths: Sequence[int]) -> list[tuple[list[str], list[str]]]:
    """The header and the rows, each as its texts and its numbers. Marks have a column of their own, so that they are not cut."""
    with_length_at = metric == LENGTH_AT_METRIC
    marked = any(line.privileged for line in lines)
    rows = [(["task", "method", *([""] if marked else [])], [*map(str, lengths), *(["L@0.9"] if with_length_at else [])])]
    for line, name in zip(lines, cells.short_names(lines), strict=True):
        texts = [line.task, name, *([labels.marks(line.privileged)] if marked else [])]
        numbers = [cells.mean(line, length) for length in lengths]
        rows.append((texts, [*numbers, *([cells.length_at(line)] if with_length_at else [])]))
    return rows


def _widths(rows: list[tuple[list[str], list[str]]]) -> tuple[list[int], list[int]]:
    """The width of each column of texts, and of each column of numbers."""
    texts, numbers = ([max(map(cell_len, column)) for column in zip(*part, strict=True)] for part in zip(*rows, strict=True))
    return texts, numbers


def _width(widths: tuple[list[int], list[int]]) -> int:
    every = [*widths[0], *widths[1]]
    return sum(every) + _GAP * (len(every) - 1)


def _aligned(rows: list[tuple[list[str], list[str]]], width: int) -> str:
    """Lines of columns, texts to the left and numbers to the right; the longest texts are cut where the width requires it."""
    of_texts, of_numbers = _widths(rows)
    while _width((of_texts, of_numbers)) > width and max(of_texts[:2]) > _SHORTEST_NAME:
        of_texts[of_texts.index(max(of_texts[:2]))] -= 1
    lines = []
    for texts, numbers in rows:
        left = [_cut(text, size) for text, size in zip(texts, of_texts, strict=True)]
        right = [text.rjust(size) for text, size in zip(numbers, of_numbers, strict=True)]
        lines.append((" " * _GAP).join([*left, *right]).rstrip())
    return "\n".join(lines)


def _cut(text: str, size: int) -> str:
    """A text in exactly `size` columns of the terminal, where a wide character takes two."""
    return set_cell_size(text, size) if cell_len(text) <= size else set_cell_size(text, size - 1) + "…"
