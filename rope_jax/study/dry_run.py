"""What a study would run, and what that costs about: operations, time on this machine, memory, and what is there already."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tabulate import tabulate

from rope_jax.study import cost
from rope_jax.study.config import Cell, Experiment, Variant
from rope_jax.study.plan import Lacking, Plan, Planned, lacking, make_plan
from rope_jax.study.settings import EvaluateConfig
from rope_jax.study.store import Store
from rope_jax.training.numbers import split_numbers

# measured on 2 cores with the quickstart: the share of the speed of large matrix products that training and evaluation reach,
# and the time to compile the programs of a task and method
_EFFICIENCY = 0.3
_COMPILE_SECONDS = 6.0
_MATRIX = 512  # rows and columns of the products whose speed is measured
_PRODUCTS = 50  # of which the fastest counts: others may have been disturbed
_LISTED = 40  # cells in the table; the others are in the totals


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be run of one cell.

    Attributes:
      planned: the cell.
      trainings: to be trained, at least in part.
      measurements: to be made.
      operations: floating-point operations of both.
    """

    planned: Planned
    trainings: int
    measurements: int
    operations: int


def dry_run(experiment: Experiment, store: Store) -> str:
    """A table of what would be run, and its totals. Nothing is written, compiled or trained."""
    plan = make_plan(experiment, store)
    missing: dict[int, list[Lacking]] = {}
    for one in lacking(plan, store):
        missing.setdefault(id(one.planned), []).append(one)
    work = [_work(planned, missing.get(id(planned), []), store) for planned in plan.planned]
    return "\n".join([*_table([each for each in work if each.measurements]), *_totals(plan, work)])


def _work(planned: Planned, missing: Sequence[Lacking], store: Store) -> Work:
    cell, operations, trainings = planned.cell, 0, 0
    for one in missing:
        done = _steps_done(store, one)
        trainings += done < cell.train.steps
        operations += cost.training_operations(cell, cell.train.steps - done)
        operations += sum(cost.measuring_operations(cell, length) for _, length in one.pairs)
    return Work(
        planned=planned,
        trainings=trainings,
        measurements=sum(len(one.pairs) for one in missing),
        operations=operations,
    )


def _steps_done(store: Store, one: Lacking) -> int:
    """The step of the last checkpoint of a training; 0 without one."""
    checkpoints = store.training(one.planned.cell, one.seed).checkpoints
    if not checkpoints.is_dir():
        return 0
    steps = (int(path.name) for path in checkpoints.iterdir() if path.name.isascii() and path.name.isdecimal())
    return min(max(steps, default=0), one.planned.cell.train.steps)


def _table(work: Sequence[Work]) -> list[str]:
    if not work:
        return []
    header = ["task", "method", "settings", "trainings", "measurements", "GFLOP", "time", "memory"]
    body = [
        [
            each.planned.cell.task.name,
            each.planned.cell.method.label,
            ("trial: " if each.planned.trial else "") + each.planned.settings,
            each.trainings,
            each.measurements,
            f"{each.operations / 1e9:.3g}",
            cost.in_time(_seconds([each])),
            cost.in_bytes(_bytes(each.planned.cell)),
        ]
        for each in work[:_LISTED]
    ]
    more = [f"and {len(work) - _LISTED} more"] if len(work) > _LISTED else []
    return [tabulate(body, header, disable_numparse=True), *more, ""]


def _totals(plan: Plan, work: Sequence[Work]) -> list[str]:
    asked = sum(len(planned.cell.seeds) for planned in plan.planned)
    measured = sum(len(planned.cell.seeds) * len(planned.cell.measurements) for planned in plan.planned)
    trainings, measurements = (sum(getattr(each, name) for each in work) for name in ("trainings", "measurements"))
    operations = sum(each.operations for each in work)
    lines = [
        f"trainings: {trainings} of {asked} to run; {asked - trainings} are there",
        f"measurements: {measurements} of {measured} to make; {measured - measurements} are there or failed",
    ]
    if measurements:
        memory = max(_bytes(each.planned.cell) for each in work if each.measurements)
        lines.append(
            f"about {operations / 1e9:.3g} GFLOP, about {cost.in_time(_seconds(work))} on this machine in one process, and at "
            f"least {cost.in_bytes(memory)} of memory"
        )
    if plan.undecided:
        lines.append(f"{plan.undecided} pairs of task and method are not counted: their settings are chosen after the trials")
    return lines


def _seconds(work: Sequence[Work]) -> float:
    """About how long work takes here: its operations at the speed that this machine just reached, and compiling."""
    programs = {(each.planned.cell.task, each.planned.cell.method.encoder) for each in work if each.measurements}
    return sum(each.operations for each in work) / (_EFFICIENCY * _speed()) + _COMPILE_SECONDS * len(programs)


@functools.cache
def _speed() -> float:
    """Floating-point operations per second of matrix products on this machine: the fastest counts."""
    matrix = np.ones((_MATRIX, _MATRIX), np.float32)

    def once() -> float:
        began = time.perf_counter()
        matrix @ matrix
        return time.perf_counter() - began

    return 2 * _MATRIX**3 / min(once() for _ in range(_PRODUCTS))


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What the memory of a cell depends on, and one cell of this kind: a grid of learning rates is one kind."""

    program: Cell
    variants: tuple[Variant, ...]
    evaluate: EvaluateConfig
    seeds: int
    cell: Cell = field(compare=False)


def _bytes(cell: Cell) -> int:
    program, _ = split_numbers(cell)
    kind = _Kind(program=program, variants=cell.method.variants, evaluate=cell.evaluate, seeds=len(cell.seeds), cell=cell)
    return _bytes_of(kind)


@functools.cache
def _bytes_of(kind: _Kind) -> int:
    return cost.cell_bytes(kind.cell)
