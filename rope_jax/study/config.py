"""What an experiment is: frozen dataclasses of Python numbers, strings and tuples, checked before any device is touched.

`Experiment` expands to `Cell`s: one cell is a task, a method and the settings, with all its seeds. The content hash of a cell
(see `serialization`) identifies it and names its folder.
"""

import dataclasses
import itertools
from dataclasses import dataclass

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.encoders.base import Encoder, changed_options, check_requirements
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.policies import PRIVILEGED, Contiguous, Policy
from rope_jax.study.serialization import content_hash, described, short_name
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
from rope_jax.tasks.base import Task

AS_TRAINED = "as-trained"  # the variant that changes nothing


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
    """

    name: str | None = dataclasses.field(default=None, metadata={"identity": False})
    encoder: Encoder | Layers
    policy: Policy = Contiguous()
    variants: tuple[Variant, ...] = ()
    tasks: tuple[Task, ...] = ()

    def __post_init__(self) -> None:
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
