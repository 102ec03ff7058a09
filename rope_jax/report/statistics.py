"""From rows to curves: what was measured at each length, over seeds. Rows in, plain numbers out; no JAX."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Metric = str  # "exact_match" or "token_accuracy"

# what a method may presume: a mark for tables and plots, and what it says
PRESUMED = {
    "length": ("†", "presumes that the length of the answer is known beforehand: what it computes depends on the whole length."),
    "separators": (
        "‡",
        "reads positions off the separators: it presumes a text whose parts are marked, and which token marks them.",
    ),
    "direction": ("§", "an oracle: its positions know in which direction the task reads the text."),
}

_UNSAID: dict[str, Any] = {"policy": "Contiguous", "policy_options": "", "policy_presumes": []}  # by rows older than the choice


@dataclass(frozen=True)
class Curve:
    """One line of a table or plot: a task, an encoder, a position policy and a variant, every seed at every length.

    Attributes:
      task, encoder, policy, variant: names, with the options that differ from the defaults.
      variant_policy: what the variant ran on.
      presumes: what the positions of the variant are told, keys of PRESUMED.
      needs_length: whether the variant presumes that the length of the answer is known.
      train_steps: optimiser steps.
      train_length: the longest in training, in symbols.
      lengths: those tested, ascending, in symbols.
      seeds: as in the config.
      examples: test examples of each length.
      values: the metric, float [seeds, lengths]; NaN for a seed that diverged.
    """

    task: str
    encoder: str
    policy: str
    variant: str
    variant_policy: str
    presumes: tuple[str, ...]
    needs_length: bool
    train_steps: int
    train_length: int
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    examples: tuple[int, ...]
    values: np.ndarray

    @property
    def positions(self) -> str:
        """The policy as tables call it, and what a variant ran on; with a mark for all that is presumed. "" for the usual one."""
        marks = "".join(PRESUMED[name][0] for name in self.presumes)
        run_on = "" if self.variant_policy == self.policy else f", run on {self.variant_policy}"
        return "" if (self.policy, run_on, marks) == ("Contiguous", "", "") else f"{self.policy}{run_on} {marks}".strip()

    @property
    def ok(self) -> np.ndarray:
        """The values of the seeds that did not diverge, [ok seeds, lengths]."""
        return self.values[~np.isnan(self.values).any(axis=1)]


def curves(rows: Iterable[dict[str, Any]], metric: Metric = "exact_match") -> list[Curve]:
    """Groups rows into curves, in the order in which they come."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in ({**_UNSAID, **row} for row in rows):
        task, encoder, policy = (_named(row[name], row[f"{name}_options"]) for name in ("task", "encoder", "policy"))
        key = (task, encoder, policy, row["variant"])
        groups.setdefault(key, []).append(row)
    return [_curve(key, group, metric) for key, group in groups.items()]


def _named(name: str, options: str) -> str:
    return f"{name}({options})" if options else name


def _curve(key: tuple[str, str, str, str], rows: list[dict[str, Any]], metric: Metric) -> Curve:
    lengths = tuple(sorted({row["length"] for row in rows}))
    seeds = tuple(dict.fromkeys(row["seed"] for row in rows))
    values = np.full((len(seeds), len(lengths)), np.nan)
    examples = {row["length"]: row["count"] for row in rows}
    if len({(row["seed"], row["length"]) for row in rows}) < len(rows):
        raise ValueError(
            f"two rows of {', '.join(key)} have one seed and length; give the methods or variants names of their own"
        )
    for row in rows:
        if row["status"] == "ok":
            values[seeds.index(row["seed"]), lengths.index(row["length"])] = row[metric]
    return Curve(
        *key,
        variant_policy=rows[0].get("variant_policy", key[2]),
        presumes=tuple(rows[0]["policy_presumes"]),
        needs_length=rows[0]["needs_length"],
        train_steps=rows[0]["train_steps"],
        train_length=rows[0]["train_length"],
        lengths=lengths,
        seeds=seeds,
        examples=tuple(examples[length] for length in lengths),
        values=values,
    )


def longest_above(lengths: tuple[int, ...], values: np.ndarray, threshold: float = 0.9) -> int:
    """L@threshold of one seed: the longest tested length up to which every value is >= threshold; 0 if there is none."""
    held = np.logical_and.accumulate(np.asarray(values) >= threshold)
    return lengths[int(held.sum()) - 1] if held.any() else 0
