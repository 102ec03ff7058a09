"""Rewrites the tables in README.md and docs/ from committed rows.

    python -m experiments.blocks

A table stands between two comments; the first one says what to show::

    <!-- table: results/encoders task=copy lengths=12,18 methods="Kerple; RoPE: NTK 2" encoder=RoPE -->
    <!-- end -->

All filters are optional. `methods` gives names and their order, with a variant behind a colon; "as-trained" where there is none.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tabulate import tabulate

from experiments import command
from experiments.cli import refusing
from rope_jax.report import statistics, tables
from rope_jax.study import store

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/results.md")


def rewrite(text: str, kind: str, make: Callable[[str], str]) -> str:
    """Replaces what stands between `<!-- KIND: DESCRIPTION -->` and `<!-- end -->`, everywhere, by make(DESCRIPTION)."""
    pattern = rf"(?<=^<!-- {kind}: )(.*?)( -->\n)(.*?)(?=^<!-- end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{match[2]}{make(match[1])}\n", text, flags=re.DOTALL | re.MULTILINE)


def block(description: str) -> str:
    """The table that a description asks for, as Markdown.

    Raises:
      ValueError: an unknown filter, or a method that the rows do not have.
    """
    folder, *filters = shlex.split(description)
    wanted = dict(each.split("=", 1) for each in filters)
    if unknown := wanted.keys() - {"task", "lengths", "methods", "encoder"}:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"table: {description}: unknown filter {names}; use task, lengths, methods or encoder")
    rows = store.read_rows(ROOT / folder / "rows.jsonl")
    lengths = [int(length) for length in wanted["lengths"].split(",")] if "lengths" in wanted else None
    rows = [
        row
        for row in rows
        if wanted.get("task", row["task"]) == row["task"]
        and wanted.get("encoder", row["encoder"]) == row["encoder"]
        and (lengths is None or row["length"] in lengths)
    ]
    curves = statistics.curves(rows)
    if "methods" in wanted:
        by_name = {(curve.method, curve.variant): curve for curve in curves}
        asked = [name.strip().partition(": ") for name in wanted["methods"].split(";")]
        keys = [(method, variant or "as-trained") for method, _, variant in asked]
        if missing := [key for key in keys if key not in by_name]:
            raise ValueError(f"table: {description}: the rows have no {missing[0]}; they have {list(by_name)}")
        curves = [by_name[key] for key in keys]
    header, body = tables.table("exact_match", curves)
    # a column that says the same in every row of the page says nothing
    shown = [i for i, name in enumerate(header) if name not in ("task", "variant") or len({row[i] for row in body}) > 1]
    if lengths is not None:  # part of the lengths: L@0.9 would be of those alone
        shown = [i for i in shown if header[i] != "L@0.9"]
    body = [[row[i].replace("|", r"\|") for i in shown] for row in body]
    return tabulate(body, [header[i] for i in shown], tablefmt="pipe", disable_numparse=True)


def rewritten(text: str) -> str:
    """A page with all its tables made anew."""
    return rewrite(text, "table", block)


def main(arguments: list[str]) -> None:
    """The command, which has no arguments."""
    command.require_no_arguments(arguments, __doc__)
    for page in PAGES:
        with refusing():
            text = rewritten((ROOT / page).read_text(encoding="utf-8"))
        store.write_whole(ROOT / page, text)
        print(f"{page} is written")


if __name__ == "__main__":
    command.run(main)
