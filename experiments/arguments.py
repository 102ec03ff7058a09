"""The command line of `compare` and `cell`: the flags, and the experiment that they make of a config."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import tyro

from experiments import command
from experiments.cli import load_experiment, perhaps
from rope_jax.encoders._internal.typed_dataclass import pairs_of
from rope_jax.study.config import Experiment, Method
from rope_jax.study.launchers import LAUNCHERS
from rope_jax.study.launchers.options import SlurmOptions
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.study.tracking import require_trackers
from rope_jax.study.tune import with_settings

METRICS = ("exact_match", "token_accuracy")  # shown by default


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare position encodings: train, evaluate beyond the training length, write rows, tables and figures.

    Attributes:
      config: a Python file that defines experiment().
      out: the folder for the results; made if it does not exist. What is there already is not run again.
      tasks: keep only these of the config's tasks, such as copy; all if not given.
      methods: keep only the config's methods with these names, such as RoPE; all if not given.
      encoders: keep only the methods whose encoder is of one of these classes, such as RoPE; all if not given.
      policies: keep only the methods whose position policy is of one of these classes, such as Contiguous; all if not given.
      seeds: one replica each.
      model: the model's sizes.
      train: training settings; a flag holds for methods with settings of their own, too.
      evaluate: evaluation settings.
      metrics: columns of the rows, each shown in a table and a figure.
      launcher: who runs the work: here, processes (on this machine), or slurm.
      jobs: processes at once, of the launcher processes; one for each device or core if not given.
      seeds_per_job: trainings in one program at most; all missing seeds of a task and method if not given.
      slurm: options of the launcher slurm.
      status: only print how the study stands.
      dry_run: only print what would be run, what it costs, and what is there already.
      list: only print the identities of the trainings that are to be run, one a line.
      retry_failed: try again what failed.
      reuse: folders whose trainings are taken over where they are the same.
      finished_before: of the job after an array of SLURM: how many trainings were finished before it.
      training: run only the trainings with these identities; for `python -m experiments.cell`.
      track: tell the losses to these as well: tensorboard, wandb.
      checkpoint_seconds: a checkpoint is written when this much time has passed since the last, and at the end of training.
      cores: how many cores to use; all that are granted if not given.
      devices_per_seed: split the batch of each seed over so many devices.
      coordinator: address and port of the first of several processes that are one program, such as host:1234.
      num_processes: how many processes are one program; taken from SLURM's variables if the coordinator is "slurm".
      process_id: which of them this is.
      force: run also what needs more memory than there is, or more than a year, by the least estimate.
      compilation_cache: keep compiled programs for the next run, in $JAX_COMPILATION_CACHE_DIR or the user's cache folder.
    """

    config: tyro.conf.Positional[command.PathArgument]
    out: command.PathArgument
    tasks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...]
    model: ModelConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    metrics: tuple[str, ...] = METRICS
    launcher: str = "here"
    jobs: int | None = None
    seeds_per_job: int | None = None
    slurm: SlurmOptions = SlurmOptions()
    status: bool = False
    dry_run: bool = False
    list: bool = False
    retry_failed: bool = False
    reuse: tuple[command.PathArgument, ...] = ()
    finished_before: int | None = None
    training: tuple[str, ...] = ()
    track: tuple[str, ...] = ()
    checkpoint_seconds: float = 20.0
    cores: int | None = None
    devices_per_seed: int = 1
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    compilation_cache: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must not be negative, got {self.checkpoint_seconds}; 0 saves every chunk")
        if not self.metrics:
            raise ValueError(f"--metrics must name at least one metric, such as {METRICS[0]}")
        if self.launcher not in LAUNCHERS:
            raise ValueError(
                f"--launcher must be one of {', '.join(LAUNCHERS)}, got {self.launcher!r}{perhaps(self.launcher, LAUNCHERS)}"
            )
        require_trackers(self.track)
        for name in ("jobs", "seeds_per_job", "cores", "devices_per_seed"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")

    def applied(self, experiment: Experiment) -> Experiment:
        """The config's experiment with the values of the command line."""
        methods = experiment.methods
        tasks = _kept("tasks", self.tasks, [(task.name, task) for task in experiment.tasks])
        picked = (
            _kept("methods", self.methods, [(method.label, method) for method in methods]),
            _kept("encoders", self.encoders, [(type(method.encoder).__name__, method) for method in methods]),
            _kept("policies", self.policies, [(type(method.policy).__name__, method) for method in methods]),
        )
        flags = tuple(_differences(experiment.train, self.train))
        kept = []
        for method in (method for method in methods if all(method in one for one in picked)):
            remaining = tuple(task for task in tasks if task in (method.tasks or tasks))
            if remaining:
                kept.append(replace(_with_flags(method, flags), tasks=remaining if method.tasks else ()))
        if not kept:
            raise ValueError(
                "no method of the config is left by --tasks, --methods, --encoders and --policies together; drop one of them"
            )
        return replace(
            experiment,
            tasks=tuple(task for task in tasks if any(task in (method.tasks or tasks) for method in kept)),
            methods=tuple(kept),
            seeds=self.seeds,
            model=self.model,
            train=self.train,
            evaluate=replace(self.evaluate, metrics=experiment.evaluate.metrics),
        )


def _with_flags(method: Method, flags: Sequence[tuple[str, Any]]) -> Method:
    """A method whose own training settings obey the flags of the command line as well."""
    if isinstance(method.train, TrainConfig):
        return replace(method, train=with_settings(method.train, tuple(flags)))
    given = dict(flags)
    return replace(method, train=tuple((path, given.get(path, value)) for path, value in pairs_of(method.train)))


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The options in which two configs of one class differ, with their new values."""
    for field in dataclasses.fields(new):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if dataclasses.is_dataclass(after) and type(before) is type(after):
            yield from _differences(before, after, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", after


Kept = TypeVar("Kept")


def _kept(flag: str, wanted: tuple[str, ...], named: Sequence[tuple[str, Kept]]) -> tuple[Kept, ...]:
    """The objects that have one of the wanted names, in the config's order; all of them if no name is given."""
    known = dict(named)
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"--{flag} {name} is not in the config{perhaps(name, known)}; it has {', '.join(dict.fromkeys(known))}"
            )
    return tuple(value for name, value in named if name in wanted or not wanted)


def parse(arguments: Sequence[str], program: str = "experiments.compare") -> tuple[Arguments, Experiment]:
    """Reads a command line and the experiment that it describes; ValueError or exit 2 if one of them is invalid."""
    loaded = load_experiment(command.path(arguments[0]))
    default = Arguments(
        config=tyro.MISSING,
        out=tyro.MISSING,
        seeds=loaded.seeds,
        model=loaded.model,
        train=loaded.train,
        evaluate=replace(loaded.evaluate, metrics=()),  # metrics are objects, which no flag can write
    )
    given = tyro.cli(Arguments, args=list(arguments), default=default, prog=f"python -m {program} {arguments[0]}")
    experiment = given.applied(loaded)
    measured = {metric.name: metric for task in experiment.tasks for metric in (*task.metrics, *experiment.evaluate.metrics)}
    _kept("metrics", given.metrics, list(measured.items()))
    return given, experiment
