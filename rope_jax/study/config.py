"""What an experiment is: frozen dataclasses of Python numbers, strings and tuples, checked before any device is touched.

`Experiment` expands to `Cell`s: one cell is a task, a method and the settings, with all its seeds. The content hash of a cell
(see `serialization`) identifies it and names its folder.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.encoders.base import Dims, Encoder, changed_options, check_requirements
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.optimizers import AdamW, Optimizer, Schedule, WarmupCosine
from rope_jax.policies import PRIVILEGED, Contiguous, Policy
from rope_jax.study.serialization import content_hash, described, short_name
from rope_jax.tasks.base import Task
from rope_jax.tasks.metrics import Metric

ROW_COLUMNS = frozenset(  # the columns of a row that hold no metric; see `rows`
    (
        *("task", "task_options", "method", "encoder", "encoder_options", "policy", "policy_options", "variant"),
        *("variant_encoder", "variant_policy", "privileged", "cell", "seed", "train_steps", "train_length", "length"),
        *("status", "diverged_at", "count"),
    )
)
AS_TRAINED = "as-trained"  # the variant that changes nothing


def _require(condition: bool, name: str, value: Any, requirement: str) -> None:
    if not condition:
        raise ValueError(f"{name} {requirement}, got {value!r}")


def _require_distinct(name: str, values: Any) -> None:
    seen: list[Any] = []
    for value in values:
        _require(value not in seen, name, value, "must not name anything twice")
        seen.append(value)


def _require_columns(where: str, metrics: tuple[Metric, ...]) -> None:
    """Raises ValueError unless each metric has a column of the rows to itself."""
    names: set[str] = set()
    for metric in metrics:
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
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "must be at least 1")
        for name in ("learning_rate", "clip_norm"):
            _require(0 < getattr(self, name) < math.inf, f"train.{name}", getattr(self, name), "must be positive and finite")
        _require(0 <= self.dropout < 1, "train.dropout", self.dropout, "must be at least 0 and below 1; 0.1 is usual")
        if self.min_length > self.max_length:
            raise ValueError(
                f"train.min_length {self.min_length} is above train.max_length {self.max_length}; swap them, or widen the range"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TypedDataclass):
    """Evaluation on fixed examples, keyed by task and length alone.

    Attributes:
      lengths: symbols of x, each a point of the curve.
      examples: test examples a length: one number for all lengths, or one for each.
      metrics: measured besides the metrics of the task; each is one more column of the rows.
    """

    lengths: tuple[int, ...] = (6, 12, 13, 14, 15, 18, 24, 48)
    examples: int | tuple[int, ...] = 512
    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
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
        _require_columns("evaluate.metrics", self.metrics)

    @property
    def examples_by_length(self) -> dict[int, int]:
        """How many examples of each length, in the order of `lengths`."""
        several = self.examples if isinstance(self.examples, tuple) else (self.examples,) * len(self.lengths)
        return dict(zip(self.lengths, several, strict=True))


@dataclass(frozen=True, kw_only=True)
class Variant(TypedDataclass):
    """One more way to evaluate a trained model: its encoder with another scaling, or other positions. No weight changes.

    Attributes:
      name: what rows and tables call it.
      encoder: replaces the trained encoder; may differ from it in its `retunable` options only. None keeps the trained one.
      policy: replaces the position policy of training. None keeps it.
    """

    name: str
    encoder: Encoder | Layers | None = None
    policy: Policy | None = None


@dataclass(frozen=True, kw_only=True)
class ResolvedVariant:
    """A variant in which the trained method's encoder and policy stand for what the variant does not replace."""

    name: str
    encoder: Encoder | Layers
    policy: Policy

    @property
    def privileged(self) -> tuple[str, ...]:
        """The privileged information that its encoder or its policy uses; see `Policy.privileged`."""
        used = {*self.policy.privileged, *(["length"] if as_layers(self.encoder).requirements.length else [])}
        return tuple(sorted(used, key=lambda name: (PRIVILEGED.index(name) if name in PRIVILEGED else len(PRIVILEGED), name)))


@dataclass(frozen=True, kw_only=True)
class Method(TypedDataclass):
    """What a comparison compares: an encoder and a position policy, trained once and evaluated under several variants.

    Attributes:
      name: what rows, tables and legends call it. None derives a name from encoder and policy; see `label`. The name is no part
        of the method's identity: a method that is given another name is not trained again.
      encoder: the position encoder of training; `Layers(...)` gives the layers different ones.
      policy: the positions that tokens are given, in training and in evaluation.
      variants: evaluated in addition to the model as trained.
      tasks: the tasks of the experiment that the method is for; () is all of them.
    """

    name: str | None = dataclasses.field(default=None, metadata={"identity": False})
    encoder: Encoder | Layers
    policy: Policy = Contiguous()
    variants: tuple[Variant, ...] = ()
    tasks: tuple[Task, ...] = ()

    def __post_init__(self) -> None:
        if self.name is not None and not self.name.strip():
            raise ValueError(f"Method name must not be blank, got {self.name!r}; leave it out to have a name derived")
        for variant in self.variants:
            _require(variant.name != AS_TRAINED, "variant", variant.name, "must have a name other than that of the trained model")
            if (variant.encoder or self.encoder, variant.policy or self.policy) == (self.encoder, self.policy):
                raise ValueError(f"variant {variant.name!r} changes nothing of the trained method; give it encoder= or policy=")
        _require_distinct("Method variants", [variant.name for variant in self.variants])
        for resolved in self.all_variants:
            changed = set(changed_options(self.encoder, resolved.encoder)) - self.encoder.retunable
            if changed:
                allowed = ", ".join(sorted(self.encoder.retunable)) or "none"
                raise ValueError(
                    f"variant {resolved.name!r} changes {', '.join(sorted(changed))} of the trained "
                    f"{type(self.encoder).__name__}; options that may change after training: {allowed}. Make it a separate "
                    "Method instead"
                )

    @property
    def label(self) -> str:
        """Its name, or one derived from encoder and policy: "RoPE(base=500.0)", "RoPE + ALiBi, PoSE(max_position=128)"."""
        if self.name is not None:
            return self.name
        return short_name(self.encoder, *([] if self.policy == Contiguous() else [self.policy]))

    @property
    def all_variants(self) -> tuple[ResolvedVariant, ...]:
        """The model as trained, called "as-trained", then the variants of the config."""
        return tuple(
            ResolvedVariant(name=variant.name, encoder=variant.encoder or self.encoder, policy=variant.policy or self.policy)
            for variant in (Variant(name=AS_TRAINED), *self.variants)
        )


@dataclass(frozen=True, kw_only=True)
class Cell(TypedDataclass):
    """The unit of work: one task, one method, the settings, and all seeds in one compiled program."""

    task: Task
    method: Method
    model: ModelConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        _require_columns(
            f"the metrics of task {self.task.name} and evaluate.metrics", (*self.task.metrics, *self.evaluate.metrics)
        )
        check_compatible(self)

    @property
    def hash(self) -> str:
        """The first 10 hex digits of its content hash; rows carry them in the column "cell"."""
        return content_hash(self)[:10]

    @property
    def id(self) -> str:
        """The name of its folder: classes first, then the hash. The method's name is left out, since it may change."""
        policy = [] if isinstance(self.method.policy, Contiguous) else [type(self.method.policy).__name__]
        names = [self.task.name, type(self.method.encoder).__name__, *policy, self.hash]
        return "-".join(names).lower()


@dataclass(frozen=True, kw_only=True)
class Experiment(TypedDataclass):
    """Every task with every method that is for it.

    Attributes:
      name: for titles; no part of the experiment's identity.
      tasks: such as (Copy(), Reverse()).
      methods: such as (Method(encoder=RoPE()),).
      model: the model's sizes.
      train: training settings.
      evaluate: evaluation settings.
      seeds: one replica each; they draw the weights and the training examples.
    """

    name: str = dataclasses.field(metadata={"identity": False})
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    seeds: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        for name, example in (("tasks", "Copy()"), ("methods", "Method(encoder=RoPE())")):
            _require(len(getattr(self, name)) > 0, name, getattr(self, name), f"must hold something, such as ({example},)")
        _require_distinct("tasks", self.tasks)
        for method in self.methods:
            for task in method.tasks:
                if task not in self.tasks:
                    raise ValueError(
                        f"the method {method.label!r} is for {described(task)}, which is not among the tasks of the experiment; "
                        "add the task there, or leave it out of the method"
                    )
        _require(len(self.seeds) > 0, "seeds", self.seeds, "must name at least one seed")
        for seed in self.seeds:
            _require(0 <= seed < 2**31, "seeds", seed, "must hold numbers from 0 to 2147483647")
        _require_distinct("seeds", self.seeds)
        for task in self.tasks:
            self._check_methods(task, [cell.method for cell in self.cells() if cell.task == task])

    def _check_methods(self, task: Task, methods: list[Method]) -> None:
        """Raises ValueError unless the methods for a task train different things under different names."""
        if not methods:
            raise ValueError(f"no method is for {described(task)}; leave the task out, or add it to a method's tasks")
        for one, other in itertools.combinations(methods, 2):
            if (one.encoder, one.policy) == (other.encoder, other.policy):
                raise ValueError(
                    f"two methods train {described(one.encoder)} with {described(one.policy)} on {described(task)}; make them "
                    "one, with the variants of both"
                )
            if one.label == other.label:
                raise ValueError(
                    f"two methods are called {one.label!r} on {described(task)}: {described(one.encoder)} with "
                    f"{described(one.policy)}, and {described(other.encoder)} with {described(other.policy)}; give one of them "
                    "another name: Method(name=...)"
                )

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


def check_compatible(cell: Cell) -> None:
    """Raises ValueError unless task, policies, encoders, sizes and layers of a cell go together. Traces nothing."""
    longest = max(cell.train.max_length, *cell.evaluate.lengths)
    cell.task.check(longest)
    length = cell.task.input_length(longest)
    for variant in cell.method.all_variants:
        encoder, policy = variant.encoder, variant.policy
        policy.check(cell.task, length)
        layers = as_layers(encoder)
        layers.check_num_layers(cell.model.num_layers)
        for each in layers.encoders:
            try:
                check_requirements(
                    each,
                    cell.model.dims,
                    position_axes=policy.axes,
                    real_positions=policy.real,
                    max_position=policy.reach(length) - 1,
                )
            except ValueError as error:
                raise ValueError(f"{described(encoder)} does not fit {described(policy)} and the model: {error}") from error
