"""The processes of a program besides the main one: they compute what it runs, and write nothing."""

import time
from collections.abc import Sequence
from typing import Any

from rope_jax.study.config import Cell, Experiment
from rope_jax.study.plan import Lacking, make_plan
from rope_jax.study.rows import Row
from rope_jax.study.store import Session, Store, TrainingFolder

_LOOKS, _SECONDS_BETWEEN_LOOKS = 120, 0.5


def order(group: Sequence[Lacking]) -> dict[str, list[str]]:
    """What the main process tells the others of a group that it runs: the identities of the trainings and measurements."""
    cell = group[0].planned.cell
    return {
        "trainings": [cell.training(one.seed) for one in group],
        "measurements": sorted(cell.measurements[pair] for pair in group[0].pairs),
    }


def ordered(order: dict[str, list[str]], experiment: Experiment, store: Store) -> list[Lacking]:
    """The group that an order names.

    A file system shows a host what another wrote a moment later, such as the trials that decide on settings. So this looks again.

    Raises:
      ValueError: the study does not have it.
    """
    for _ in range(_LOOKS):
        for planned in make_plan(experiment, store).planned:
            cell = planned.cell
            seeds = {cell.training(seed): seed for seed in cell.seeds}
            pairs = frozenset(pair for pair, measurement in cell.measurements.items() if measurement in order["measurements"])
            if seeds.keys() >= set(order["trainings"]) and len(pairs) == len(order["measurements"]):
                return [Lacking(planned=planned, seed=seeds[name], pairs=pairs) for name in order["trainings"]]
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise ValueError(
        f"this process does not find the trainings {', '.join(order['trainings'])} of the main process in its study; start all "
        "processes with the same config and flags, and give a folder that all hosts share"
    )


class SilentStore(Store):
    """A store that is read, and whose trainings write nothing."""

    def training(self, cell: Cell, seed: int) -> TrainingFolder:
        return SilentFolder(super().training(cell, seed).path)


class SilentFolder(TrainingFolder):
    """A folder of a training that is read, and whose records go nowhere."""

    def start(self, cell: Cell, seed: int, step: int) -> None:
        pass

    def log(self, entry: Row) -> None:
        pass

    def finish(self, rows: list[Row]) -> None:
        pass

    def fail(self, reason: str, **details: Any) -> None:
        pass


class SilentSession(Session):
    """A session that is not recorded."""

    def note(self, work: Row) -> None:
        pass
