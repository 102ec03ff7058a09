"""What an experiment is: frozen dataclasses of Python numbers, strings and tuples, checked before any device is touched.

`Experiment` expands to `Cell`s: one cell is a task, a method and the settings, with all its seeds. A cell names its trainings,
one a seed, and its measurements: each has an identity of its own, a hash of what it depends on (see `serialization`).
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass, pairs_of
from rope_jax.encoders.base import Encoder, changed_options, check_requirements
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.policies import PRIVILEGED, Contiguous, Policy
from rope_jax.study.serialization import SCHEMA, described, identity, json_hash, short_name
from rope_jax.study.settings import (
    LARGEST_INT32,
    EvaluateConfig,
    ModelConfig,
    TrainConfig,
    require,
    require_columns,
    require_distinct,
    require_file_name,
    require_name,
)
from rope_jax.study.tune import Settings, Tune, with_settings
from rope_jax.tasks.base import Task

AS_TRAINED = "as-trained"  # the variant that changes nothing
_DIGITS = 10  # of a hash, in hex, in rows and names of folders


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

    def __post_init__(self) -> None:
        require_name("Variant name", self.name)


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
      train: its training settings: {"learning_rate": 1e-3} for what differs from the experiment's, or a whole TrainConfig.
    """

    name: str | None = dataclasses.field(default=None, metadata={"identity": False})
    encoder: Encoder | Layers
    policy: Policy = Contiguous()
    variants: tuple[Variant, ...] = ()
    tasks: tuple[Task, ...] = ()
    train: TrainConfig | Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.train, TrainConfig):
            require_distinct("Method train", [path for path, _ in pairs_of(self.train)])
            self.train_config(TrainConfig())  # are there such options?
        if self.name is not None:
            if not self.name.strip():
                raise ValueError(f"Method name must not be blank, got {self.name!r}; leave it out to have a name derived")
            require_name("Method name", self.name)
        for variant in self.variants:
            require(variant.name != AS_TRAINED, "variant", variant.name, "must have a name other than that of the trained model")
            if (variant.encoder or self.encoder, variant.policy or self.policy) == (self.encoder, self.policy):
                raise ValueError(f"variant {variant.name!r} changes nothing of the trained method; give it encoder= or policy=")
        require_distinct("Method variants", [variant.name for variant in self.variants])
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

    def train_config(self, common: TrainConfig) -> TrainConfig:
        """Its training settings, where those of the experiment are `common`."""
        return self.train if isinstance(self.train, TrainConfig) else with_settings(common, pairs_of(self.train))

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
        require_file_name(f"the name of {type(self.task).__name__}", self.task.name)
        require_columns(
            f"the metrics of task {self.task.name} and evaluate.metrics", (*self.task.metrics, *self.evaluate.metrics)
        )
        check_compatible(self)

    @functools.cached_property
    def _identity(self) -> str:
        """What all its trainings share, as JSON: task, method as trained, model and training settings."""
        shared = {
            "task": identity(self.task),
            "encoder": identity(self.method.encoder),
            "policy": identity(self.method.policy),
            "model": identity(self.model),
            "train": identity(self.train),
        }
        return json.dumps({"schema": SCHEMA, "training": shared}, sort_keys=True)

    def training(self, seed: int) -> str:
        """The identity of the training of a seed: 10 hex digits, which rows carry in the column "training"."""
        return json_hash([self._identity, seed])[:_DIGITS]

    def training_name(self, seed: int) -> str:
        """The name of the folder of a training; see `training_name`."""
        policy = type(self.method.policy).__name__
        return training_name(self.task.name, type(self.method.encoder).__name__, policy, seed, self.training(seed))

    @functools.cached_property
    def measurements(self) -> Mapping[tuple[str, int], str]:
        """The identity of each measurement of one training, by the name of its variant and the length: 10 hex digits.

        It depends on the variant's encoder and policy, the length, the number of test examples, and on metrics that the config
        adds.
        """
        common = json.dumps([SCHEMA, identity(self.evaluate.metrics)], sort_keys=True)
        found = {}
        for variant in self.method.all_variants:
            of_variant = json.dumps([identity(variant.encoder), identity(variant.policy)], sort_keys=True)
            for length, examples in self.evaluate.examples_by_length.items():
                found[variant.name, length] = json_hash([common, of_variant, length, examples])[:_DIGITS]
        return found


def training_name(task: str, encoder: str, policy: str, seed: int, training: str) -> str:
    """The name of the folder of a training, such as "copy-rope-seed0-0123456789". The method's name, which may change, is left
    out.

    Args:
      task: its name.
      encoder, policy: their classes; the policy is left out if it is the usual one.
      seed: as in the config.
      training: its identity.
    """
    policies = [] if policy == Contiguous.__name__ else [policy]
    return "-".join([task, encoder, *policies, f"seed{seed}", training]).lower()


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
      tune: chooses training settings for every method before the seeds are trained; None trains them as `train` says.
    """

    name: str = dataclasses.field(metadata={"identity": False})
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    seeds: tuple[int, ...] = (0, 1)
    tune: Tune | None = None

    def __post_init__(self) -> None:
        require_name("Experiment name", self.name)
        for name, example in (("tasks", "Copy()"), ("methods", "Method(encoder=RoPE())")):
            require(len(getattr(self, name)) > 0, name, getattr(self, name), f"must hold something, such as ({example},)")
        require_distinct("tasks", self.tasks)
        for method in self.methods:
            for task in method.tasks:
                if task not in self.tasks:
                    raise ValueError(
                        f"the method {method.label!r} is for {described(task)}, which is not among the tasks of the experiment; "
                        "add the task there, or leave it out of the method"
                    )
        require(len(self.seeds) > 0, "seeds", self.seeds, "must name at least one seed")
        for seed in self.seeds:
            require(seed >= 0, "seeds", seed, "must hold numbers from 0 to 2147483647")
        require_distinct("seeds", self.seeds)
        for task in self.tasks:
            self._check_methods(task, [method for of_task, method in self.pairs() if of_task == task])
        if self.tune is not None:
            self._check_tune(self.tune)
        self.cells()

    def _check_tune(self, tune: Tune) -> None:
        """Raises ValueError unless every method can try the grid, and every task has the metric that decides."""
        for method in self.methods:
            tune.check(method.train_config(self.train))
        for task in self.tasks:
            names = [metric.name for metric in (*task.metrics, *self.evaluate.metrics)]
            if tune.metric not in names:
                raise ValueError(
                    f"Tune metric {tune.metric!r} is not measured on {described(task)}; choose one of {', '.join(names)}"
                )

    def _check_methods(self, task: Task, methods: list[Method]) -> None:
        """Raises ValueError unless the methods for a task train different things under different names."""
        if not methods:
            raise ValueError(f"no method is for {described(task)}; leave the task out, or add it to a method's tasks")
        named = [(method, method.label, (method.encoder, method.policy, method.train_config(self.train))) for method in methods]
        for (one, name, trained), (other, other_name, other_trained) in itertools.combinations(named, 2):
            if trained == other_trained:
                raise ValueError(
                    f"two methods train {described(one.encoder)} with {described(one.policy)} on {described(task)}; make them "
                    "one, with the variants of both"
                )
            if name == other_name:
                raise ValueError(
                    f"two methods are called {name!r} on {described(task)}: {described(one.encoder)} with "
                    f"{described(one.policy)}, and {described(other.encoder)} with {described(other.policy)}; give one of them "
                    "another name: Method(name=...)"
                )

    def pairs(self) -> tuple[tuple[Task, Method], ...]:
        """Every task with every method that is for it, task by task."""
        return tuple(
            (task, method) for task, method in itertools.product(self.tasks, self.methods) if task in (method.tasks or self.tasks)
        )

    def cell(self, task: Task, method: Method, settings: Settings = ()) -> Cell:
        """The cell of a task and a method; `settings` are training settings that were chosen for it."""
        return Cell(
            task=task,
            method=dataclasses.replace(method, tasks=(), train=()),
            model=self.model,
            train=with_settings(method.train_config(self.train), settings),
            evaluate=self.evaluate,
            seeds=self.seeds,
        )

    def cells(self) -> tuple[Cell, ...]:
        """The cells of all pairs, with the settings of the config; where `tune` chooses settings, see `plan`."""
        return tuple(self.cell(task, method) for task, method in self.pairs())


def check_compatible(cell: Cell) -> None:
    """Raises ValueError unless task, policies, encoders, sizes and layers of a cell go together. Traces nothing."""
    longest = max(cell.train.max_length, *cell.evaluate.lengths)
    cell.task.check(longest)
    length = cell.task.input_length(longest)
    for what, number in (
        (f"the input positions of {cell.task.name}", length),
        (f"the vocabulary of {cell.task.name}", cell.task.vocabulary),
    ):
        require(number <= LARGEST_INT32, what, number, f"must be at most {LARGEST_INT32}, the largest int32")
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
                    causal=cell.task.causal,
                )
            except ValueError as error:
                raise ValueError(f"{described(encoder)} does not fit {described(policy)} and the model: {error}") from error
