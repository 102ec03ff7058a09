"""Comparison tables: curves in, Markdown or LaTeX out. No JAX; no model is loaded.

Every function takes the curves of each metric: `{metric: statistics.curves(rows, metric)}`.
"""

import re
from collections.abc import Callable, Mapping

from tabulate import tabulate

from rope_jax.report import cells, labels
from rope_jax.report.notes import notes
from rope_jax.report.statistics import LENGTH_AT_METRIC, Curve, all_lengths

# tabulate escapes what else is special
_LATEX = {"†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "…": r"\ldots{}", "“": "``", "”": "''"}


def markdown(curves: Mapping[str, list[Curve]]) -> str:
    """A Markdown table for each metric, and below them how to read them."""
    sections = []
    for metric, lines in curves.items():
        header, body = table(metric, lines, text=_escaped)
        sections.append(f"### {labels.title(metric)}\n\n{tabulate(body, header, tablefmt='pipe', disable_numparse=True)}\n")
    return "\n".join([*sections, *(f"{note}\n" for note in notes(curves))])


def _escaped(text: str) -> str:
    """A name in a cell of Markdown, where it is shown as it is. An underscore within a word needs no escape."""
    return re.sub(r"[\\|`*<$]", r"\\\g<0>", text)


def latex(curves: Mapping[str, list[Curve]]) -> str:
    """The same tables in LaTeX (packages booktabs and graphicx); a table wider than the text is scaled down to it."""
    sections = ["% \\usepackage{booktabs}\n% \\usepackage{graphicx}\n"]
    for metric, lines in curves.items():
        header, body = table(metric, lines)
        tabular = tabulate(body, header, tablefmt="latex_booktabs", disable_numparse=True)
        fitted = f"\\resizebox{{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}}{{!}}{{%\n{tabular}%\n}}"
        sections += [f"% {labels.title(metric)}", fitted, ""]
    text = "\n".join([*sections, *(f"% {note}\n" for note in notes(curves))])
    for character, command in _LATEX.items():
        text = text.replace(character, command)
    return text


def table(metric: str, lines: list[Curve], text: Callable[[str], str] = str) -> tuple[list[str], list[list[str]]]:
    """The header and the cells of a metric's table, one row a curve; `text` escapes names."""
    lengths = all_lengths(lines)
    trained = {line.train_length for line in lines}
    columns = [f"{length / min(trained):.3g}x ({length})" if len(trained) == 1 else str(length) for length in lengths]
    body = [[*map(text, cells.names(line)), *(cells.mean_and_range(line, length) for length in lengths)] for line in lines]
    if metric == LENGTH_AT_METRIC:
        columns.append("L@0.9")
        body = [[*row, cells.length_at(line)] for row, line in zip(body, lines, strict=True)]
    return ["task", "method", "variant", *columns], body
