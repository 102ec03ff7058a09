"""`--launcher processes --jobs N`: a bounded pool of processes on this machine, each with its share of the cores or devices."""

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rope_jax.study.launchers.base import Launch
from rope_jax.study.plan import Lacking, lacking, make_plan
from rope_jax.study.store import Store
from rope_jax.training import devices

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 20.0  # from the request to stop to the end of a worker: a chunk of training and a checkpoint
_MOST_DEATHS = 3  # of processes that worked on one training, before it counts as failed


def launch(launch: Launch) -> bool:
    """Runs what is missing in several processes, which share the work by the locks of its trainings."""
    launch.store.begin()
    seeds = Counter(id(one.planned) for one in lacking(make_plan(launch.experiment, launch.store), launch.store))
    if not seeds:
        return True
    groups = sum(math.ceil(count / (launch.seeds_per_job or count)) for count in seeds.values())
    pool = _Pool(
        launch, slots=slots(launch.jobs, launch.cores or devices.cores_granted(), devices.visible_accelerators(), groups)
    )
    try:
        pool.run()
    finally:
        pool.stop()
    return True


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What one process gets: so many cores, and accelerators by their names for CUDA_VISIBLE_DEVICES."""

    cores: int
    accelerators: tuple[str, ...] = ()


def slots(jobs: int | None, cores: int, accelerators: list[str], groups: int) -> list[Slot]:
    """Shares the machine out among processes.

    Args:
      jobs: how many processes; None is one for each accelerator or, without any, for each core.
      cores: of this machine that may be used.
      accelerators: their names for CUDA_VISIBLE_DEVICES; [] on a machine without any.
      groups: of trainings that are run together. A process gets several accelerators only where there are fewer of them.
    """
    count = min(jobs or max(1, len(accelerators) or cores), groups)
    share = max(1, cores // count)
    if not accelerators:
        return [Slot(cores=share)] * count
    return [
        Slot(cores=share, accelerators=tuple(accelerators[i::count]) or (accelerators[i % len(accelerators)],))
        for i in range(count)
    ]


@dataclass
class _Pool:
    launch: Launch
    slots: list[Slot]
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Keeps a process in every slot until all of them end by themselves."""
        ended: set[int] = set()
        while len(ended) < len(self.slots):
            self.launch.stop.check()
            for slot in range(len(self.slots)):
                process = self.running.get(slot)
                if process is None and slot not in ended:
                    self.running[slot] = self._start(slot)
                elif process is not None and process.poll() is not None:
                    del self.running[slot]
                    if process.returncode < 0:
                        self._note_death(process)
                    else:
                        ended.add(slot)
                        if process.returncode not in (0, 1):
                            self.launch.watch.said(f"a process ended with status {process.returncode}: {self._log(slot)}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Asks all processes to stop, and ends those that do not."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _GRACE_SECONDS
        for process in self.running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, slot: int) -> Path:
        return self.launch.store.path / "launch" / f"processes-{os.getpid()}" / f"{slot}.log"

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        log = self._log(slot)
        log.parent.mkdir(parents=True, exist_ok=True)
        share = self.slots[slot]
        command = [sys.executable, "-m", "experiments.cell", *self.launch.arguments, "--cores", str(share.cores)]
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(share.accelerators)} if share.accelerators else {}
        with log.open("ab") as file:
            return subprocess.Popen(
                command,
                env={**os.environ, **visible},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C goes to this process alone, which asks the others to stop
            )

    def _note_death(self, process: subprocess.Popen[bytes]) -> None:
        """A process was killed: another one goes on with its trainings, which fail when that happened too often."""
        name = signal.Signals(-process.returncode).name
        for one, owner in _owned(self.launch, process.pid):
            self.deaths[owner] += 1
            if self.deaths[owner] >= _MOST_DEATHS:
                self.launch.store.training(one.planned.cell, one.seed).fail(
                    f"{_MOST_DEATHS} processes were killed while they worked on it, the last by {name}; there may be too little "
                    "memory"
                )


def _owned(launch: Launch, process: int) -> list[tuple[Lacking, str]]:
    """What a process that is gone was working on, with the names of the folders."""
    store: Store = launch.store
    found = []
    for one in lacking(make_plan(launch.experiment, store), store):
        folder = store.training(one.planned.cell, one.seed)
        if folder.last_owner().endswith(f":{process}"):
            found.append((one, folder.path.name))
    return found
