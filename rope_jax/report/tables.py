"""Comparison tables: rows in, Markdown or LaTeX out. No JAX; no model is loaded."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tabulate import tabulate

from rope_jax.report.statistics import PRESUMED, Curve, curves, longest_above

_TITLES = {
    "exact_match": "Exact match: the fraction of test examples with all of y and EOS right",
    "token_accuracy": "Token accuracy: the fraction of tokens of y and EOS that are right",
}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The Markdown tables, exact match first, with how to read them below."""
    parts = []
    for metric, title in _TITLES.items():
        lines = curves(rows, metric)
        header, body = _cells(lines, with_length_at=metric == "exact_match", text=lambda text: text.replace("|", r"\|"))
        parts.append(f"### {title}\n\n{tabulate(body, header, tablefmt='pipe', disable_numparse=True)}\n")
    return "\n".join([*parts, *(f"{note}\n" for note in notes(curves(rows)))])


def latex(rows: list[dict[str, Any]]) -> str:
    """The same tables as LaTeX tabulars (they need the package booktabs)."""
    parts = ["% \\usepackage{booktabs}\n"]
    for metric, title in _TITLES.items():
        header, body = _cells(curves(rows, metric), with_length_at=metric == "exact_match", text=str)
        parts += [f"% {title}", tabulate(body, header, tablefmt="latex_booktabs", disable_numparse=True), ""]
    parts += [f"% {note}\n" for note in notes(curves(rows))]
    text = "\n".join(parts)  # tabulate has escaped what else is special
    for mark, command in (("†", r"$\dagger$"), ("‡", r"$\ddagger$"), ("§", r"\S{}")):
        text = text.replace(mark, command)
    return text


def notes(lines: list[Curve]) -> list[str]:
    """How to read the table, as sentences."""
    first = lines[0]
    seeds = f"{len(first.seeds)} seed{'s' if len(first.seeds) > 1 else ''} ({', '.join(str(seed) for seed in first.seeds)})"
    found = [
        f"A column is a test length as a multiple of the training length ({first.train_length}), in brackets the symbols of x. "
        f"Models were trained for {first.train_steps} steps. A cell is the mean over {seeds}, in brackets the smallest and the "
        f"largest where they differ in three digits; {_examples(first)}, the same for every row of a task. "
        "L@0.9 is the longest tested length up to which a seed's exact match stays >= 0.9, from the worst seed to the best; "
        "0 is none."
    ]
    presumed = {name for line in lines for name in (*line.presumes, *(["length"] if line.needs_length else []))}
    found += [f"{mark} {meaning}" for name, (mark, meaning) in PRESUMED.items() if name in presumed]
    if any(0 < len(line.ok) < len(line.seeds) for line in lines):
        found.append("“1 of 2” is said where a seed diverged: figures run over the others.")
    return found


def _examples(line: Curve) -> str:
    """How many test examples there are, by length where that differs."""
    if len(set(line.examples)) == 1:
        return f"{line.examples[0]} test examples a length"
    changes = [i for i in range(1, len(line.examples)) if line.examples[i] != line.examples[i - 1]]
    return f"{line.examples[0]} test examples a length" + "".join(
        f", {line.examples[i]} from length {line.lengths[i]} on" for i in changes
    )


def _cells(lines: list[Curve], *, with_length_at: bool, text: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    lengths = sorted({length for line in lines for length in line.lengths})
    shown = any(line.positions for line in lines)
    header = [
        "task",
        "encoder",
        *(["positions"] if shown else []),
        "variant",
        *(f"{length / lines[0].train_length:.3g}x ({length})" for length in lengths),
    ]
    body = []
    for line in lines:
        cells = [text(line.task), text(line.encoder), *([text(line.positions or line.policy)] if shown else [])]
        cells.append(text(line.variant + (f" {PRESUMED['length'][0]}" if line.needs_length else "")))
        cells += [_summary(line, line.lengths.index(length)) if length in line.lengths else "" for length in lengths]
        body.append([*cells, *([_length_at(line)] if with_length_at else [])])
    return [*header, *(["L@0.9"] if with_length_at else [])], body


def _summary(line: Curve, column: int) -> str:
    values = line.ok[:, column]
    if not values.size:
        return "diverged"
    low, high = f"{np.min(values):.3f}", f"{np.max(values):.3f}"
    spread = f" ({low}-{high})" if low != high else ""
    return f"{np.mean(values):.3f}{spread}{_missing(line)}"


def _length_at(line: Curve) -> str:
    reached = [longest_above(line.lengths, values) for values in line.ok]
    if not reached:
        return "diverged"
    low, high = min(reached), max(reached)
    return (f"{low}" if low == high else f"{low}-{high}") + _missing(line)


def _missing(line: Curve) -> str:
    return "" if len(line.ok) == len(line.seeds) else f" {len(line.ok)} of {len(line.seeds)}"
