"""How a study stands, read from its store alone: from any shell, and after whoever launched it is gone."""

import statistics
from dataclasses import dataclass, field

from rope_jax.study.config import Experiment
from rope_jax.study.files import DamagedError
from rope_jax.study.gather import title
from rope_jax.study.plan import Planned, make_plan
from rope_jax.study.store import Store


@dataclass
class Status:
    """The trainings of a study, by how they stand.

    Attributes:
      done: how many are trained and measured.
      running: for each that a process works on, its title and how far it is.
      failed: for each that failed or has damaged files, its title and the reason.
      waiting: the titles of all others.
      undecided: pairs of task and method whose settings are still to be chosen by trials.
      steps_left: optimiser steps of trainings that run or wait.
      steps_per_second: of all processes together; None if no training runs.
    """

    done: int = 0
    running: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    undecided: int = 0
    steps_left: int = 0
    steps_per_second: float | None = None

    def text(self) -> str:
        """Lines for a terminal."""
        lines = [f"running: {name}: {how}" for name, how in self.running.items()]
        lines += [f"failed:  {name}: {reason}" for name, reason in self.failed.items()]
        lines += [f"waiting: {name}" for name in self.waiting[:5]]
        if len(self.waiting) > 5:
            lines.append(f"waiting: and {len(self.waiting) - 5} more")
        if self.undecided:
            lines.append(f"waiting: {self.undecided} pairs of task and method, for the choice of their settings")
        counts = f"{self.done} done, {len(self.running)} running, {len(self.failed)} failed, {len(self.waiting)} waiting"
        if self.steps_per_second:
            counts += f"; about {self.steps_left / self.steps_per_second / 60:.0f} minutes of training left at the present speed"
        return "\n".join([*lines, counts])


def read_status(experiment: Experiment, store: Store) -> Status:
    """Reads how the trainings of an experiment stand."""
    status, speeds = Status(), []
    plan = make_plan(experiment, store)
    status.undecided = plan.undecided
    for planned in plan.planned:
        wanted = frozenset(planned.cell.measurements.values())
        for seed in planned.cell.seeds:
            try:
                if store.holds(planned.cell, seed, wanted):
                    status.done += 1
                    continue
                reason = store.training(planned.cell, seed).failure()
            except DamagedError as error:
                reason = f"damaged: {error}"
            if reason is not None:
                status.failed[title(planned, seed)] = reason
            else:
                speeds += _note_open(status, planned, seed, store)
    if speeds:
        status.steps_per_second = statistics.mean(speeds) * len(status.running)
    return status


def _note_open(status: Status, planned: Planned, seed: int, store: Store) -> list[float]:
    """Notes a training that runs or waits; its speed in steps per second, if that is known."""
    folder, steps = store.training(planned.cell, seed), planned.cell.train.steps
    owner, entry = folder.owner(), folder.last_entry()
    done = entry.get("step", 0) if isinstance(entry.get("step", 0), int) else 0
    status.steps_left += max(0, steps - done)
    if owner is None:
        status.waiting.append(title(planned, seed))
        return []
    status.running[title(planned, seed)] = f"step {done} of {steps}, by {owner}"
    speed = entry.get("steps_per_second")
    return [speed] if isinstance(speed, (int, float)) and speed > 0 else []
