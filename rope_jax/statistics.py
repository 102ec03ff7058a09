"""From rows to curves: what was measured at each length, over seeds. Rows in, plain numbers out; no JAX."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Metric = str  # "exact_match" or "token_accuracy"


@dataclass(frozen=True)
class Curve:
    """One line of a table or plot: a task, an encoder and a variant, every seed at every length.

    Attributes:
      task, encoder, variant: names, with the options that differ from the defaults.
      needs_length: whether the variant presumes that the length of the answer is known.
      train_steps: optimiser steps.
      train_length: the longest in training, in symbols.
      lengths: those tested, ascending, in symbols.
      seeds: as in the config.
      examples: test examples a length.
      values: the metric, float [seeds, lengths]; NaN for a seed that diverged.
    """

    task: str
    encoder: str
    variant: str
    needs_length: bool
    train_steps: int
    train_length: int
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    examples: int
    values: np.ndarray

    @property
    def ok(self) -> np.ndarray:
        """The values of the seeds that did not diverge, [ok seeds, lengths]."""
        return self.values[~np.isnan(self.values).any(axis=1)]


def curves(rows: Iterable[dict[str, Any]], metric: Metric = "exact_match") -> list[Curve]:
    """Groups rows into curves, in the order in which they come."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (_named(row["task"], row["task_options"]), _named(row["encoder"], row["encoder_options"]), row["variant"])
        groups.setdefault(key, []).append(row)
    return [_curve(key, group, metric) for key, group in groups.items()]


def _named(name: str, options: str) -> str:
    return f"{name}({options})" if options else name


def _curve(key: tuple[str, str, str], rows: list[dict[str, Any]], metric: Metric) -> Curve:
    lengths = tuple(sorted({row["length"] for row in rows}))
    seeds = tuple(dict.fromkeys(row["seed"] for row in rows))
    values = np.full((len(seeds), len(lengths)), np.nan)
    for row in rows:
        if row["status"] == "ok":
            values[seeds.index(row["seed"]), lengths.index(row["length"])] = row[metric]
    return Curve(
        *key,
        needs_length=rows[0]["needs_length"],
        train_steps=rows[0]["train_steps"],
        train_length=rows[0]["train_length"],
        lengths=lengths,
        seeds=seeds,
        examples=rows[0]["count"],
        values=values,
    )


def longest_above(lengths: tuple[int, ...], values: np.ndarray, threshold: float = 0.9) -> int:
    """L@threshold of one seed: the longest tested length up to which every value is >= threshold; 0 if there is none."""
    held = np.logical_and.accumulate(np.asarray(values) >= threshold)
    return lengths[int(held.sum()) - 1] if held.any() else 0
