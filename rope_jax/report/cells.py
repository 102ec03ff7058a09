"""The texts of tables and legends: names of curves, and what stands in the cells."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rope_jax.report import labels
from rope_jax.report.statistics import AS_TRAINED, Curve, Status, longest_above


def names(line: Curve) -> list[str]:
    """Task, method and variant, with the marks of privileged information."""
    return [line.task, line.method, labels.marked(line.variant, line.privileged)]


def short_names(lines: Sequence[Curve]) -> list[str]:
    """A name for each curve: its method, and its variant if the method has several: "RoPE, NTK 2"."""
    varied = {line.method for line in lines if line.variant != AS_TRAINED}
    return [f"{line.method}, {line.variant}" if line.method in varied else line.method for line in lines]


def mean(line: Curve, length: int) -> str:
    """The mean over seeds at a length: "0.900", "0.900 1 of 2", "diverged"."""
    values, statuses = line.at(length)
    return f"{np.mean(values):.3f}{_of_how_many(len(values), statuses)}" if len(values) else _without_value(statuses)


def mean_and_range(line: Curve, length: int) -> str:
    """As `mean`, with the smallest and the largest value where they differ in three digits: "0.900 (0.850-0.950)"."""
    values, statuses = line.at(length)
    if not len(values):
        return _without_value(statuses)
    low, high = f"{np.min(values):.3f}", f"{np.max(values):.3f}"
    spread = f" ({low}-{high})" if low != high else ""
    return f"{np.mean(values):.3f}{spread}{_of_how_many(len(values), statuses)}"


def length_at(line: Curve) -> str:
    """L@0.9 of the worst seed and the best: "12", "6-12"; of the seeds that have a value at every length."""
    reached = [longest_above(line.lengths, values) for values in line.complete]
    if not reached:
        return _without_value(min(statuses, key=lambda status: status == "ok") for statuses in line.statuses)
    low, high = min(reached), max(reached)
    return (f"{low}" if low == high else f"{low}-{high}") + _of_how_many(len(reached), line.seeds)


def _of_how_many(count: int, seeds: tuple[object, ...]) -> str:
    return "" if count == len(seeds) else f" {count} of {len(seeds)}"


def _without_value(statuses: Iterable[Status]) -> str:
    """What is written where no seed has a value: "diverged", "1 diverged, 1 missing", or "" if the metric was not measured."""
    counts = Counter(status for status in statuses if status != "ok")
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} {status}" for status, count in counts.items())
