"""Rows: one dict for each measurement, a line of rows.jsonl: a task, method, variant, seed and length.

`row` makes them; `settings.ROW_COLUMNS` names the columns that hold no metric, in their order. Every row carries a digest of its
own, so that a damaged line is noticed wherever the row was copied.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from rope_jax.study.config import Cell, ResolvedVariant
from rope_jax.study.serialization import described, options
from rope_jax.study.settings import ROW_COLUMNS

Row = dict[str, Any]

_DIGEST_DIGITS = 16


def description(cell: Cell, variant: ResolvedVariant) -> Row:
    """The columns that say what was trained and how it is evaluated.

    Returns:
      task, task_options: the task's name, and its options that differ from the defaults.
      method: the method's name.
      encoder, encoder_options, policy, policy_options: classes, and options that differ from the defaults, as trained.
      variant: its name, "as-trained" for the model as trained.
      variant_encoder, variant_policy: as a config writes them; None where the variant keeps the trained one.
      privileged: what the variant is given beyond the text; see `Policy.privileged`.
    """
    method = cell.method
    return {
        "task": cell.task.name,
        "task_options": options(cell.task),
        "method": method.label,
        "encoder": type(method.encoder).__name__,
        "encoder_options": options(method.encoder),
        "policy": type(method.policy).__name__,
        "policy_options": options(method.policy),
        "variant": variant.name,
        "variant_encoder": None if variant.encoder == method.encoder else described(variant.encoder),
        "variant_policy": None if variant.policy == method.policy else described(variant.policy),
        "privileged": list(variant.privileged),
    }


def identification(cell: Cell, variant: ResolvedVariant, *, seed: int, length: int) -> Row:
    """The columns that identify a measurement: those of `description`, training, measurement, seed, and the lengths.

    Returns:
      Besides `description`: training, measurement (identities, see `Cell`), seed, train_steps, train_length, length (the last two
      in symbols of x).
    """
    return {
        **description(cell, variant),
        "training": cell.training(seed),
        "measurement": cell.measurements[variant.name, length],
        "seed": seed,
        "train_steps": cell.train.steps,
        "train_length": cell.train.max_length,
        "length": length,
    }


def row(
    cell: Cell,
    variant: ResolvedVariant,
    *,
    seed: int,
    length: int,
    examples: int,
    distinct: float,
    measured: Mapping[str, tuple[float, float]],
    diverged_at: int,
) -> Row:
    """One row.

    Args:
      cell, variant: what was trained, and how it was evaluated.
      seed: as in the config.
      length: symbols of x.
      examples: how many test examples there were.
      distinct: the share of different examples among them.
      measured: the sum and the count of each metric, by its name.
      diverged_at: the step at which training diverged; -1 if it did not.

    Returns:
      The columns of `identification`; status ("ok", or "diverged", which diverged_at follows); distinct, as given; seen, from
      `expected_share_seen`; count (of test examples); then the metrics, None where the seed diverged or nothing was counted.
    """
    diverged = diverged_at >= 0
    return {
        **identification(cell, variant, seed=seed, length=length),
        **({"status": "diverged", "diverged_at": diverged_at} if diverged else {"status": "ok"}),
        "distinct": distinct,
        "seen": expected_share_seen(cell, length),
        "count": examples,
        **{name: None if diverged or not count else total / count for name, (total, count) in measured.items()},
    }


def failed_row(cell: Cell, variant: ResolvedVariant, *, seed: int, length: int, reason: str) -> Row:
    """The row of a training that failed: its metrics are None, and `reason` says why."""
    metrics = (*cell.task.metrics, *cell.evaluate.metrics)
    return {
        **identification(cell, variant, seed=seed, length=length),
        "status": "failed",
        "reason": reason,
        "count": cell.evaluate.examples_by_length[length],
        **{metric.name: None for metric in metrics},
    }


def completed(row: Row, **columns: Any) -> Row:
    """A row with more columns, all in their order, and with the digest of the whole."""
    changed = {**row, **columns}
    changed["digest"] = digest(changed)
    return {name: changed[name] for name in (*ROW_COLUMNS, *changed) if name in changed}


def digest(row: Row) -> str:
    """16 hex digits of the SHA-256 of a row without its digest."""
    content = {name: value for name, value in row.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGEST_DIGITS]


def expected_share_seen(cell: Cell, length: int) -> float | None:
    """The share of test examples of a length that a seed's training is expected to have drawn too; None if it is not known.

    Of N equally probable examples, n draws contain a given one with the probability 1 - (1 - 1/N)^n. Here n is the expected
    number of training examples of that length, and 0 outside the training range.
    """
    train = cell.train
    if not train.min_length <= length <= train.max_length:
        return 0.0
    different = cell.task.num_examples(length)
    if different is None:
        return None
    draws = train.steps * train.batch_size / (train.max_length - train.min_length + 1)
    return 1.0 if different == 1 else -math.expm1(draws * math.log1p(-1 / different))
