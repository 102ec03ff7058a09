"""Rewrites the tables in docs/speed.md from results/benchmarks.

    python -m benchmarks.page

A table stands between two comments; the first one names the file of its rows::

    <!-- benchmark: step -->
    <!-- end -->
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import attention, harness, replicas, step
from benchmarks.harness import Row
from experiments import command
from experiments.blocks import rewrite
from rope_jax.study import store

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "speed.md"
ROWS = ROOT / "results" / "benchmarks"


def ratios(rows: Sequence[Row], keys: dict[str, str], *, seconds: str = "median_seconds") -> str:
    """A table with the time of "ours" and, for every other contender, its median ratio to ours.

    Args:
      rows: of one benchmark.
      keys: the fields that name a line, each with the title of its column.
      seconds: the field with the time.
    """
    names = list(dict.fromkeys(row["contender"] for row in rows))
    others = sorted((name for name in names if name != "ours"), key=lambda name: name.startswith("ours:"))
    lines: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), {})[row["contender"]] = row
    body = []
    for values, by_name in lines.items():
        cells = [f"{by_name[name]['ratio']:.2f}" if name in by_name else "" for name in others]
        time = by_name["ours"][seconds]
        body.append([*values, f"{time:.3g} s" if time >= 1 else f"{time * 1e3:.3g} ms", *cells])
    return harness.markdown([*keys.values(), "ours", *(name.removeprefix("ours:") for name in others)], body)


def step_table(rows: list[Row]) -> str:
    """Times of a training step, and the largest shares of the time of other libraries."""
    return "\n\n".join([ratios(rows, {"length": "symbols", "dropout": "dropout"}), " ".join(step.shares(rows))])


def attention_table(rows: list[Row]) -> str:
    """Times of attention, and the largest growth of memory."""
    memory = [row for row in rows if "growth" in row]
    growth, length = max(row["growth"] for row in memory), memory[0]["length"]
    table = ratios([row for row in rows if "ratio" in row], {"length": "positions", "direction": "direction"})
    return (
        f"{table}\n\nWith every encoder, twice {length:,} positions take at most {growth:.2f} times the memory; the target is "
        f"{attention.MAX_GROWTH}."
    )


def replicas_table(rows: list[Row]) -> str:
    """Times of a step of several replicas."""
    settings = {name: rows[0][name] for name in ("batch_size", "rounds")}
    return replicas.ReplicasBenchmark(**settings).table(rows)


TABLES: dict[str, Callable[[list[Row]], str]] = {
    "step": step_table,
    "step_mixed": lambda rows: ratios(rows, {"length": "longest, symbols"}),
    "replicas": replicas_table,
    "attention": attention_table,
    "curve": lambda rows: ratios(rows, {"examples": "examples per length"}, seconds="median_seconds_a_length"),
    "compile": lambda rows: ratios(rows, {"length": "longest, symbols"}),
}


def rewritten(text: str) -> str:
    """A page with all its tables made from the committed rows."""

    def table(name: str) -> str:
        return TABLES[name](json.loads((ROWS / f"{name}.json").read_text(encoding="utf-8"))["rows"])

    return rewrite(text, "benchmark", table)


def main(arguments: list[str]) -> None:
    """The command, which has no arguments."""
    command.require_no_arguments(arguments, __doc__)
    store.write_whole(PAGE, rewritten(PAGE.read_text(encoding="utf-8")))
    print(f"{PAGE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    command.run(main)
