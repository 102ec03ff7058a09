"""From rows to curves: the value of a metric at each length, for every seed. Rows in, plain numbers out; no JAX."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Row = dict[str, Any]
Status = Literal["ok", "diverged", "failed", "missing"]
AS_TRAINED = "as-trained"  # the variant that changes nothing
LENGTH_AT_METRIC = "exact_match"  # the metric that L@0.9 is of


@dataclass(frozen=True)
class Trial:
    """Settings that were tried for a task and a method.

    Attributes:
      settings: such as "learning_rate=0.001"; "" is those of the experiment.
      metric: the one that decides, a column of the rows.
      seeds, lengths: over which its mean is taken.
      mean: over the seeds that have a value; NaN if none has.
      without_value: seeds that diverged or failed.
    """

    settings: str
    metric: str
    seeds: tuple[int, ...]
    lengths: tuple[int, ...]
    mean: float
    without_value: int


@dataclass(frozen=True)
class Curve:
    """One line of a table or figure: a task, a method and a variant, with every seed at every length.

    Attributes:
      metric: the column of the rows that `values` holds.
      task: its name, with the options that differ from the defaults.
      method: its name.
      variant: its name; "as-trained" for the model as trained.
      privileged: what the variant is given beyond the text, keys of `labels.PRIVILEGED`.
      train_steps: optimiser steps.
      train_length: the longest in training, in symbols of x.
      lengths: those tested, ascending, in symbols of x.
      seeds: those of the rows.
      examples: test examples of each length.
      distinct: the share of different ones among them, of each length; None in rows of versions that did not record it.
      seen: the share of them that training is expected to have drawn too, of each length; None likewise, or if it is not known.
      values: float [seeds, lengths]; NaN where there is no value.
      settings: training settings that differ from the experiment's, such as "learning_rate=0.001".
      trials: what was tried to choose them; () if nothing was.
      statuses: [seeds][lengths]: "ok", "diverged" or "failed" as the row says, "missing" where there is no row. Where the status
        is "ok" and the value NaN, the row was measured before the metric existed.
    """

    metric: str
    task: str
    method: str
    variant: str
    privileged: tuple[str, ...]
    train_steps: int
    train_length: int
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    examples: tuple[int, ...]
    distinct: tuple[float | None, ...]
    seen: tuple[float | None, ...]
    values: np.ndarray
    statuses: tuple[tuple[Status, ...], ...]
    settings: str = ""
    trials: tuple[Trial, ...] = ()

    @property
    def complete(self) -> np.ndarray:
        """The values of the seeds that have one at every length, [complete seeds, lengths]."""
        return self.values[~np.isnan(self.values).any(axis=1)]

    @property
    def unmeasured(self) -> np.ndarray:
        """Where the status is "ok" and there is no value, bool [seeds, lengths]."""
        return np.isnan(self.values) & (np.array(self.statuses) == "ok")

    def at(self, length: int) -> tuple[np.ndarray, tuple[Status, ...]]:
        """The values that there are at a length, at most one for each seed, and the status of every seed there."""
        missing: Status = "missing"
        if length not in self.lengths:
            return np.zeros(0), (missing,) * len(self.seeds)
        column = self.lengths.index(length)
        values = self.values[:, column]
        return values[~np.isnan(values)], tuple(of_seed[column] for of_seed in self.statuses)


def metrics(rows: Sequence[Row]) -> list[str]:
    """The metrics of the rows: the columns that follow `count`."""
    names: dict[str, None] = {}
    for row in rows:
        columns = list(row)
        names |= dict.fromkeys(columns[columns.index("count") + 1 :])
    return list(names)


def curves(rows: Sequence[Row], metric: str = "exact_match") -> list[Curve]:
    """Groups rows by task, method and variant, in the order in which they come; trials become part of their method's curves.

    Raises:
      ValueError: no row has the metric, or two rows have the same task, method, variant, seed and length.
    """
    known = metrics(rows)
    if metric not in known:
        raise ValueError(f"the rows have no metric {metric!r}; they have {', '.join(known)}")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    tried: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        task = f"{row['task']}({row['task_options']})" if row["task_options"] else row["task"]
        if row.get("trial"):
            tried.setdefault((task, row["method"]), {}).setdefault(row["settings"], []).append(row)
        else:
            groups.setdefault((task, row["method"], row["variant"]), []).append(row)
    trials = {key: tuple(_trial(*each) for each in of_method.items()) for key, of_method in tried.items()}
    return [_curve(key, group, metric, trials.get(key[:2], ())) for key, group in groups.items()]


def _trial(settings: str, rows: list[Row]) -> Trial:
    metric = rows[0]["trial"]
    values = [row[metric] for row in rows if row.get(metric) is not None]
    return Trial(
        settings=settings,
        metric=metric,
        seeds=tuple(dict.fromkeys(row["seed"] for row in rows)),
        lengths=tuple(dict.fromkeys(row["length"] for row in rows)),
        mean=float(np.mean(values)) if values else float("nan"),
        without_value=len({row["seed"] for row in rows if row.get(metric) is None}),
    )


def _curve(key: tuple[str, str, str], rows: list[Row], metric: str, trials: tuple[Trial, ...]) -> Curve:
    lengths = tuple(sorted({row["length"] for row in rows}))
    seeds = tuple(dict.fromkeys(row["seed"] for row in rows))
    if len({(row["seed"], row["length"]) for row in rows}) < len(rows):
        raise ValueError(
            f"two rows have the same task, method and variant ({', '.join(key)}), seed and length; give methods or variants "
            "different names"
        )
    values = np.full((len(seeds), len(lengths)), np.nan)
    statuses: list[list[Status]] = [["missing"] * len(lengths) for _ in seeds]
    for row in rows:
        place = seeds.index(row["seed"]), lengths.index(row["length"])
        statuses[place[0]][place[1]] = row["status"]
        if row["status"] == "ok" and row.get(metric) is not None:
            values[place] = row[metric]
    by_length = {row["length"]: row for row in rows}
    return Curve(
        metric,
        *key,
        privileged=tuple(rows[0]["privileged"]),
        train_steps=rows[0]["train_steps"],
        train_length=rows[0]["train_length"],
        lengths=lengths,
        seeds=seeds,
        examples=tuple(by_length[length]["count"] for length in lengths),
        distinct=tuple(by_length[length].get("distinct") for length in lengths),
        seen=tuple(by_length[length].get("seen") for length in lengths),
        values=values,
        statuses=tuple(map(tuple, statuses)),
        settings=rows[0].get("settings", ""),
        trials=trials,
    )


def all_lengths(lines: Iterable[Curve]) -> list[int]:
    """The lengths of any of the curves, ascending."""
    return sorted({length for line in lines for length in line.lengths})


def longest_above(lengths: tuple[int, ...], values: np.ndarray, threshold: float = 0.9) -> int:
    """L@threshold of one seed: the longest tested length up to which every value is >= threshold; 0 if there is none."""
    held = np.logical_and.accumulate(np.asarray(values) >= threshold)
    return lengths[int(held.sum()) - 1] if held.any() else 0
