"""What an experiment requests, what of it the store lacks, and which settings `Tune` chooses from what is there."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rope_jax.study.config import Cell, Experiment, Method
from rope_jax.study.files import DamagedError
from rope_jax.study.serialization import described
from rope_jax.study.settings import EvaluateConfig, TrainConfig
from rope_jax.study.store import Store
from rope_jax.study.tune import Settings, Tune, best_of
from rope_jax.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A cell that is requested.

    Attributes:
      cell: what is trained and measured.
      trial: of a trial of `Tune`, which tables leave out, the metric that decides; else None.
      settings: its training settings where they differ from the experiment's, and those that `Tune` tries or chose, such as
        "learning_rate=0.001".
    """

    cell: Cell
    trial: str | None = None
    settings: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells that can be run by now.

    Attributes:
      planned: the cells of the study, then the trials.
      undecided: pairs of task and method whose settings cannot be chosen before their trials are done.
    """

    planned: tuple[Planned, ...]
    undecided: int = 0


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """What the store lacks of one training.

    Attributes:
      planned: the cell.
      seed: of the training.
      pairs: names of variants and lengths that are not measured.
    """

    planned: Planned
    seed: int
    pairs: frozenset[tuple[str, int]]


def make_plan(experiment: Experiment, store: Store) -> Plan:
    """The cells of an experiment; those of a pair that is tuned once its trials are done."""
    tune = experiment.tune
    if tune is None:
        cells = [experiment.cell(task, method) for task, method in experiment.pairs()]
        return Plan(planned=tuple(_planned(experiment, cell) for cell in cells))
    finals: list[Planned] = []
    trials: list[Planned] = []
    undecided = 0
    for task, method in experiment.pairs():
        tried = [(settings, _trial(experiment, tune, task, method, settings)) for settings in tune.combinations()]
        trials += [_planned(experiment, cell, settings, trial=tune.metric) for settings, cell in tried]
        values = [_values(store, tune, cell) for _, cell in tried]
        if any(of_combination is None for of_combination in values):
            undecided += 1
            continue
        chosen = tried[best_of(tune, [of_combination or () for of_combination in values])][0]
        finals.append(_planned(experiment, experiment.cell(task, method, chosen), chosen))
    return Plan(planned=(*finals, *trials), undecided=undecided)


def lacking(plan: Plan, store: Store) -> Iterator[Lacking]:
    """What is to be run: neither measured nor failed. Every row is read. Damaged trainings are left out: see `gather`."""
    for planned in plan.planned:
        for seed in planned.cell.seeds:
            try:
                there = store.measured(planned.cell, seed)
                missing = frozenset(pair for pair, measurement in planned.cell.measurements.items() if measurement not in there)
                if missing and store.training(planned.cell, seed).failure() is None:
                    yield Lacking(planned=planned, seed=seed, pairs=missing)
            except DamagedError:
                continue


def progress(experiment: Experiment, store: Store) -> tuple[int, int]:
    """How many trainings are finished, and how many are left, as far as they are known by now."""
    plan = make_plan(experiment, store)
    left = sum(1 for _ in lacking(plan, store))
    return sum(len(planned.cell.seeds) for planned in plan.planned) - left, left


def _planned(experiment: Experiment, cell: Cell, tuned: Settings = (), *, trial: str | None = None) -> Planned:
    settings = dict(tuned) | dict(_differences(experiment.train, cell.train))
    return Planned(cell=cell, trial=trial, settings=", ".join(f"{name}={described(value)}" for name, value in settings.items()))


def _differences(common: TrainConfig, train: TrainConfig) -> Iterator[tuple[str, Any]]:
    """The options of training that differ, and their values; of an option with options of its own, those."""
    for field in dataclasses.fields(common):
        old, new = getattr(common, field.name), getattr(train, field.name)
        if old == new:
            continue
        if dataclasses.is_dataclass(new) and type(old) is type(new):
            for inner in dataclasses.fields(new):
                if getattr(old, inner.name) != getattr(new, inner.name):
                    yield f"{field.name}.{inner.name}", getattr(new, inner.name)
        else:
            yield field.name, new


def _trial(experiment: Experiment, tune: Tune, task: Task, method: Method, settings: Settings) -> Cell:
    plain = dataclasses.replace(method, variants=())
    evaluate = EvaluateConfig(lengths=tune.lengths, examples=tune.examples, metrics=experiment.evaluate.metrics)
    return dataclasses.replace(experiment.cell(task, plain, settings), evaluate=evaluate, seeds=tune.seeds)


def _values(store: Store, tune: Tune, cell: Cell) -> Sequence[float | None] | None:
    """The metric of every seed and length of a trial, None where training diverged or failed; None if one is not there yet."""
    values: list[float | None] = []
    wanted = cell.measurements.values()
    for seed in cell.seeds:
        try:
            rows = store.measured(cell, seed)
            if all(measurement in rows for measurement in wanted):
                values += [rows[measurement].get(tune.metric) for measurement in wanted]
            elif store.training(cell, seed).failure() is not None:
                values += [None] * len(wanted)
            else:
                return None
        except DamagedError:
            return None
    return values
