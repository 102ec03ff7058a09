"""What an experiment is: frozen dataclasses of Python numbers, strings and tuples, checked before any device is touched.

`Experiment` expands to `Cell`s: one cell is a task, a method and the settings, all its seeds together. Every object has a JSON
form, and the content hash of a cell names its folder.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from rope_jax.encoders._internal.typed_dataclass import Checked
from rope_jax.encoders.base import Dims, Encoder
from rope_jax.optimizers import AdamW, Optimizer, Schedule, WarmupCosine
from rope_jax.policies import Contiguous, Policy
from rope_jax.study.serialization import content_hash, described
from rope_jax.tasks.base import Task


def _require(condition: bool, name: str, value: Any, requirement: str) -> None:
    if not condition:
        raise ValueError(f"{name} {requirement}, got {value!r}")


def _require_distinct(name: str, values: Any) -> None:
    seen: list[Any] = []
    for value in values:
        _require(value not in seen, name, value, "must not name anything twice")
        seen.append(value)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
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
        super().__post_init__()
        for name in ("num_layers", "width", "num_heads", "mlp_factor"):
            _require(getattr(self, name) >= 1, f"model.{name}", getattr(self, name), "must be at least 1")
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
        return Dims(width=self.width, num_heads=self.num_heads, head_dim=self.width // self.num_heads)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
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
        super().__post_init__()
        for name in ("steps", "batch_size", "min_length", "max_length"):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "must be at least 1")
        for name in ("learning_rate", "clip_norm"):
            _require(0 < getattr(self, name) < math.inf, f"train.{name}", getattr(self, name), "must be positive and finite")
        _require(0 <= self.dropout < 1, "train.dropout", self.dropout, "must be at least 0 and below 1; 0.1 is usual")
        if self.min_length > self.max_length:
            raise ValueError(
                f"train.min_length {self.min_length} is above train.max_length {self.max_length}; swap them, or widen the range"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Checked):
    """Evaluation on fixed examples, keyed by task and length alone.

    Attributes:
      lengths: symbols of x, each a point of the curve.
      examples: test examples a length: one number for all lengths, or one for each.
    """

    lengths: tuple[int, ...] = (6, 12, 13, 14, 15, 18, 24, 48)
    examples: int | tuple[int, ...] = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(len(self.lengths) > 0, "evaluate.lengths", self.lengths, "must name at least one length")
        for length in self.lengths:
            _require(length >= 1, "evaluate.lengths", length, "must hold lengths of at least 1 symbol")
        _require_distinct("evaluate.lengths", self.lengths)
        if isinstance(self.examples, tuple) and len(self.examples) != len(self.lengths):
            raise ValueError(
                f"evaluate.examples has {len(self.examples)} numbers for {len(self.lengths)} lengths; give one for each, or "
                "one number for all"
            )
        for examples in self.examples_by_length.values():
            _require(examples >= 1, "evaluate.examples", examples, "must be at least 1")

    @property
    def examples_by_length(self) -> dict[int, int]:
        """How many examples of each length, in the order of `lengths`."""
        several = self.examples if isinstance(self.examples, tuple) else (self.examples,) * len(self.lengths)
        return dict(zip(self.lengths, several, strict=True))


@dataclass(frozen=True, kw_only=True)
class Variant(Checked):
    """One more way to run a trained model: its encoder with another scaling, or other positions. No weight changes.

    Attributes:
      name: as rows and tables call it.
      encoder: replaces the trained one; may differ from it in `Encoder.variant_fields` only. None keeps it.
      policy: replaces the one trained with. None keeps it.
    """

    name: str
    encoder: Encoder | None = None
    policy: Policy | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A way to run a trained model, complete: a variant with what it keeps filled in."""

    name: str
    encoder: Encoder
    policy: Policy


@dataclass(frozen=True, kw_only=True)
class Method(Checked):
    """What a comparison compares: an encoder and positions for it, trained once and evaluated as trained and under every variant.

    Attributes:
      encoder: trained with; `Layers(...)` gives each layer its own.
      policy: which positions tokens are given, in training and evaluation.
      variants: evaluated besides.
      tasks: those of the experiment that it is meant for; () is all of them.
    """

    encoder: Encoder
    policy: Policy = Contiguous()
    variants: tuple[Variant, ...] = ()
    tasks: tuple[Task, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for variant in self.variants:
            _require(
                variant.name != "as-trained", "variant", variant.name, "must have a name other than that of the trained model"
            )
            if (variant.encoder or self.encoder, variant.policy or self.policy) == (self.encoder, self.policy):
                raise ValueError(f"variant {variant.name!r} changes nothing of the trained method; give it encoder= or policy=")
        _require_distinct("Method variants", [variant.name for variant in self.variants])
        for run in self.all_variants:
            changed = self.encoder.changed_by(run.encoder)
            if changed:
                allowed = ", ".join(sorted(self.encoder.variant_fields)) or "none"
                raise ValueError(
                    f"variant {run.name!r} changes {', '.join(sorted(changed))} of the trained "
                    f"{type(self.encoder).__name__}; options that may change after training: {allowed}. Make it a Method of "
                    "its own instead"
                )

    @property
    def all_variants(self) -> tuple[Run, ...]:
        """The plain one, "as-trained", then those of the config."""
        return tuple(
            Run(name=variant.name, encoder=variant.encoder or self.encoder, policy=variant.policy or self.policy)
            for variant in (Variant(name="as-trained"), *self.variants)
        )


@dataclass(frozen=True, kw_only=True)
class Cell(Checked):
    """The unit of work: one task, one method, the settings, and all seeds in one compiled program."""

    task: Task
    method: Method
    model: ModelConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = max(self.train.max_length, *self.evaluate.lengths)
        self.task.check(longest)
        self.method.encoder.check_layers(self.model.num_layers)
        for variant in self.method.all_variants:
            self._check(variant.encoder, variant.policy, self.task.input_length(longest))

    def _check(self, encoder: Encoder, policy: Policy, length: int) -> None:
        policy.check(self.task, length)
        encoder.check(self.model.dims, policy.reach(length))
        try:
            encoder.check_positions(policy.axes, policy.real)
        except ValueError as error:
            raise ValueError(f"{described(encoder)} cannot read the positions of {described(policy)}: {error}") from error

    @property
    def id(self) -> str:
        """The name of its folder: readable first, then the content hash."""
        policy = [] if isinstance(self.method.policy, Contiguous) else [type(self.method.policy).__name__]
        names = [self.task.name, type(self.method.encoder).__name__, *policy, content_hash(self)[:10]]
        return "-".join(names).lower()


@dataclass(frozen=True, kw_only=True)
class Experiment(Checked):
    """Every task with every method that is meant for it.

    Attributes:
      name: for titles.
      tasks: such as (Copy(), Reverse()).
      methods: such as (Method(encoder=RoPE()),).
      model: the model's sizes.
      train: training settings.
      evaluate: evaluation settings.
      seeds: one replica each; they draw the weights and the training examples.
    """

    name: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    seeds: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, example in (("tasks", "Copy()"), ("methods", "Method(encoder=RoPE())")):
            _require(len(getattr(self, name)) > 0, name, getattr(self, name), f"must hold something, such as ({example},)")
        _require_distinct("tasks", self.tasks)
        for method in self.methods:
            for task in method.tasks:
                if task not in self.tasks:
                    raise ValueError(
                        f"the method {described(method)} is meant for {described(task)}, which is not among the tasks of the "
                        "experiment; add it there, or leave it out of the method"
                    )
        _require(len(self.seeds) > 0, "seeds", self.seeds, "must name at least one seed")
        for seed in self.seeds:
            _require(0 <= seed < 2**31, "seeds", seed, "must hold numbers from 0 to 2147483647")
        _require_distinct("seeds", self.seeds)
        cells = self.cells()
        trained = [(cell.task, cell.method.encoder, cell.method.policy) for cell in cells]
        for one in trained:
            if trained.count(one) > 1:
                of, encoder, policy = map(described, one)
                raise ValueError(f"two methods train {encoder} with {policy} on {of}; make them one, with the variants of both")
        for task in self.tasks:
            if all(cell.task != task for cell in cells):
                raise ValueError(f"no method is meant for {described(task)}; leave the task out, or add it to a method's tasks")

    def cells(self) -> tuple[Cell, ...]:
        """Task by task, method by method."""
        return tuple(
            Cell(
                task=task,
                method=dataclasses.replace(method, tasks=()),
                model=self.model,
                train=self.train,
                evaluate=self.evaluate,
                seeds=self.seeds,
            )
            for task, method in itertools.product(self.tasks, self.methods)
            if task in (method.tasks or self.tasks)
        )
