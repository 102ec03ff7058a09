"""The settings of an experiment: the model's sizes, training and evaluation. Plain data that model and training read."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.encoders.base import Dims
from rope_jax.optimizers import AdamW, Optimizer, Schedule, WarmupCosine
from rope_jax.tasks.metrics import Metric

ROW_COLUMNS = (  # the columns of a row that hold no metric, in their order; see `rows`
    *("task", "task_options", "method", "encoder", "encoder_options", "policy", "policy_options", "variant"),
    *("variant_encoder", "variant_policy", "privileged", "settings", "trial", "training", "measurement"),
    *("commit", "jax", "device", "together", "devices_per_seed", "seed", "train_steps", "train_length", "length"),
    *("status", "diverged_at", "reason", "digest", "distinct", "seen", "count"),
)


LARGEST_INT32 = 2**31 - 1
LONGEST_NAME = 200  # characters; a longer one leaves no room in a figure


def require(condition: bool, name: str, value: Any, requirement: str) -> None:
    """Raises ValueError with the field's name, what is required and the value, unless the condition holds."""
    if not condition:
        raise ValueError(f"{name} {requirement}, got {value!r}")


def require_name(where: str, name: str) -> None:
    """Raises ValueError unless a name can stand in tables, figures and files."""
    require(bool(name.strip()), where, name, "must not be blank")
    require(
        name.isprintable(),
        where,
        name,
        "must be printable text, without line breaks, control characters and halves of surrogate pairs",
    )
    require(len(name) <= LONGEST_NAME, where, name, f"must have at most {LONGEST_NAME} characters")


def require_file_name(where: str, name: str) -> None:
    """Raises ValueError unless a name can be part of the name of a file on every system."""
    require(
        re.fullmatch(r"\w[\w.@+-]*", name) is not None,
        where,
        name,
        "must consist of letters, digits and the characters _ . @ + -, since files are named after it",
    )


def require_distinct(name: str, values: Any) -> None:
    """Raises ValueError if a value occurs twice."""
    seen: list[Any] = []
    for value in values:
        require(value not in seen, name, value, "must not name anything twice")
        seen.append(value)


def require_columns(where: str, metrics: tuple[Metric, ...]) -> None:
    """Raises ValueError unless each metric has a column of the rows to itself."""
    names: set[str] = set()
    for metric in metrics:
        require_file_name(f"{where}: the name of {type(metric).__name__}", metric.name)
        taken = "another metric" if metric.name in names else "another value" if metric.name in ROW_COLUMNS else ""
        if taken:
            raise ValueError(
                f"{where} must have names that no other column of the rows has, but the name {metric.name!r} of "
                f"{type(metric).__name__} is that of {taken}; leave the metric out, or rename it"
            )
        names.add(metric.name)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(TypedDataclass):
    """The mini-Transformer's sizes.

    Attributes:
      num_layers: blocks.
      width: features of the residual stream; a multiple of num_heads.
      num_heads: attention heads.
      mlp_factor: hidden features of the MLP, in widths.
      compute_dtype: of matrix products; parameters, angles, softmax and loss are float32 in any case.
    """

    num_layers: int = 2
    width: int = 64
    num_heads: int = 4
    mlp_factor: int = 4
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("num_layers", "width", "num_heads", "mlp_factor"):
            require(getattr(self, name) >= 1, f"model.{name}", getattr(self, name), "must be at least 1")
        require(
            self.hidden <= LARGEST_INT32,
            "model.width * model.mlp_factor",
            self.hidden,
            f"must be at most {LARGEST_INT32}, the largest int32",
        )
        if self.width % self.num_heads:
            raise ValueError(
                f"model.width {self.width} is not divisible by model.num_heads {self.num_heads}; "
                f"use a width such as {self.num_heads * max(1, round(self.width / self.num_heads))}"
            )

    @property
    def hidden(self) -> int:
        """Features of the MLP between its two maps."""
        return self.mlp_factor * self.width

    @property
    def dims(self) -> Dims:
        """As encoders want them."""
        return Dims(width=self.width, num_heads=self.num_heads, head_dim=self.width // self.num_heads, num_layers=self.num_layers)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TypedDataclass):
    """Training settings.

    Attributes:
      steps: optimiser steps.
      batch_size: examples per step.
      min_length: the shortest training example, in symbols.
      max_length: the longest training example, in symbols; "the training length".
      length_draw: lengths are uniform in the range, drawn for each "example", or once per step for the whole "batch".
      learning_rate: the peak of the schedule.
      optimizer: how gradients change the parameters, such as AdamW(weight_decay=0.1).
      schedule: how the learning rate changes over the steps, such as WarmupCosine(warmup_steps=500).
      dropout: the probability that a feature of the embeddings or of a sublayer's output is set to zero, in training only.
      clip_norm: a gradient of a larger global norm is scaled down to this norm.
    """

    steps: int = 1500
    batch_size: int = 32
    min_length: int = 1
    max_length: int = 12
    length_draw: Literal["example", "batch"] = "example"
    learning_rate: float = 2e-3
    optimizer: Optimizer = AdamW()
    schedule: Schedule = WarmupCosine()
    dropout: float = field(default=0.0, metadata={"static": True})  # without dropout, the program has no code for it
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "min_length", "max_length"):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "must be at least 1")
        for name in ("learning_rate", "clip_norm"):
            require(getattr(self, name) > 0, f"train.{name}", getattr(self, name), "must be positive")
        require(0 <= self.dropout < 1, "train.dropout", self.dropout, "must be at least 0 and below 1; 0.1 is usual")
        if self.min_length > self.max_length:
            raise ValueError(
                f"train.min_length {self.min_length} is above train.max_length {self.max_length}; swap them, or widen the range"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TypedDataclass):
    """Evaluation on fixed examples, keyed by task and length alone.

    Attributes:
      lengths: symbols of x, each a point of the curve.
      examples: test examples per length: one number for all lengths, or one for each.
      metrics: measured besides the metrics of the task; each is one more column of the rows.
    """

    lengths: tuple[int, ...] = (6, 12, 13, 14, 15, 18, 24, 48)
    examples: int | tuple[int, ...] = 512
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.lengths) > 0, "evaluate.lengths", self.lengths, "must name at least one length")
        for length in self.lengths:
            require(length >= 1, "evaluate.lengths", length, "must hold lengths of at least 1 symbol")
        require_distinct("evaluate.lengths", self.lengths)
        if isinstance(self.examples, tuple) and len(self.examples) != len(self.lengths):
            raise ValueError(
                f"evaluate.examples has {len(self.examples)} numbers for {len(self.lengths)} lengths; give one for each, or "
                "one number for all"
            )
        for examples in self.examples_by_length.values():
            require(examples >= 1, "evaluate.examples", examples, "must be at least 1")
        require_columns("evaluate.metrics", self.metrics)

    @property
    def examples_by_length(self) -> dict[int, int]:
        """How many examples of each length, in the order of `lengths`."""
        several = self.examples if isinstance(self.examples, tuple) else (self.examples,) * len(self.lengths)
        return dict(zip(self.lengths, several, strict=True))
