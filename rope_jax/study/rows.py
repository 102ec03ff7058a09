"""Rows: one dict for each task, method, variant, seed and length, a line of rows.jsonl.

`row` makes them; `settings.ROW_COLUMNS` names the columns that hold no metric.
"""

import math
from collections.abc import Mapping
from typing import Any

from rope_jax.study.config import Cell, ResolvedVariant
from rope_jax.study.serialization import described, options

Row = dict[str, Any]


def description(cell: Cell, variant: ResolvedVariant) -> Row:
    """The columns that say what was trained and how it is evaluated.

    Returns:
      task, task_options: the task's name, and its options that differ from the defaults.
      method: the method's name.
      encoder, encoder_options, policy, policy_options: classes, and options that differ from the defaults, as trained.
      variant: its name, "as-trained" for the model as trained.
      variant_encoder, variant_policy: as a config writes them; None where the variant keeps the trained one.
      privileged: what the variant is given beyond the text; see `Policy.privileged`.
      cell: the first 10 hex digits of the cell's hash.
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
        "cell": cell.hash,
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
      The columns of `description`; seed, train_steps, train_length, length (the last two in symbols of x); status ("ok", or
      "diverged", which diverged_at follows); distinct, as given; seen, from `expected_share_seen`; count (of test examples);
      then the metrics, None where the seed diverged or nothing was counted.
    """
    diverged = diverged_at >= 0
    return {
        **description(cell, variant),
        "seed": seed,
        "train_steps": cell.train.steps,
        "train_length": cell.train.max_length,
        "length": length,
        **({"status": "diverged", "diverged_at": diverged_at} if diverged else {"status": "ok"}),
        "distinct": distinct,
        "seen": expected_share_seen(cell, length),
        "count": examples,
        **{name: None if diverged or not count else total / count for name, (total, count) in measured.items()},
    }


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
