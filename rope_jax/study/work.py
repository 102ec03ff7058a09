"""Runs what a store lacks, in this process: trains, evaluates, writes rows. Any number of processes may do so in one folder.

A process locks the trainings that it works on, those of one cell together in one program, and skips those that others have
locked. It may die at any moment: its locks go with it, files are whole or not there, and training goes on from the last
checkpoint.

Several processes may be one program, whose devices work together (`training.processes`). The main process then does all of this
and tells the others what it runs. They compute the same, and write nothing (`followers`).
"""

import contextlib
import itertools
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import numpy as np

from rope_jax.study import followers, machine
from rope_jax.study.config import Cell, Experiment
from rope_jax.study.files import DamagedError, misplaced, read_object
from rope_jax.study.gather import title
from rope_jax.study.options import Options, Watch
from rope_jax.study.plan import Lacking, Plan, Planned, lacking, make_plan
from rope_jax.study.provenance import Maker
from rope_jax.study.rows import Row, completed
from rope_jax.study.stop import Stop, StopRequest
from rope_jax.study.store import Session, Store, TrainingFolder
from rope_jax.study.tracking import Tracker, trackers
from rope_jax.training import checkpoint, devices, processes
from rope_jax.training.evaluate import check_evaluation, evaluate
from rope_jax.training.numbers import split_numbers
from rope_jax.training.train import Progress, TrainState, fit

_WAIT_SECONDS = 0.5  # between looks at trainings that others have locked


@dataclass
class Worker:
    """One process at work.

    Attributes:
      experiment, store: what, and where.
      session: records the work that is done.
      maker: what rows say of the code and the machine that made them.
      options: how.
      stop: asked between chunks of work whether to stop.
      watch: told how it goes.
      only: the identities of the trainings to run; None is all of them.
      skipped: trainings whose files are damaged, by their title.
    """

    experiment: Experiment
    store: Store
    session: Session
    maker: Maker
    options: Options = Options()
    stop: StopRequest = field(default_factory=Stop)
    watch: Watch = field(default_factory=Watch)
    only: Collection[str] | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    _checked: set[object] = field(default_factory=set)  # kinds of cells whose evaluation was traced
    _compiled: object = None

    def run(self) -> int:
        """Runs all that is missing; waits for what other processes have locked. Returns how many trainings it worked on."""
        done = self._lead() if processes.is_main() else self._follow()
        processes.leave()
        return done

    def _lead(self) -> int:
        done = 0
        while True:
            plan = make_plan(self.experiment, self.store)
            groups = list(self.groups(plan))
            worked = 0
            for group in groups:
                self.stop.check()
                worked += self._run_unlocked(group)
            done += worked
            if not groups or (not worked and self.only is not None):  # others are at it; they finish it, or the next command does
                processes.from_main(None)
                return done
            if not worked:
                time.sleep(_WAIT_SECONDS)

    def _follow(self) -> int:
        done = 0
        while (order := processes.from_main(None)) is not None:
            group = followers.ordered(order, self.experiment, self.store)
            self._run_recording_failures(group)
            done += len(group)
        return done

    def groups(self, plan: Plan) -> Iterator[list[Lacking]]:
        """What is missing, in groups that are run together: seeds of one cell that lack the same."""
        wanted = (
            one
            for one in lacking(plan, self.store)
            if (self.only is None or one.planned.cell.training(one.seed) in self.only)
            and title(one.planned, one.seed) not in self.skipped
        )
        for _, alike in itertools.groupby(wanted, key=lambda one: (id(one.planned), one.pairs)):
            group = list(alike)
            size = self.options.seeds_together or len(group)
            yield from (group[start : start + size] for start in range(0, len(group), size))

    def _run_unlocked(self, group: Sequence[Lacking]) -> int:
        """Runs those of a group that nobody has locked; how many."""
        with contextlib.ExitStack() as locks:
            claimed = []
            for one in group:
                folder = self.store.training(one.planned.cell, one.seed)
                try:
                    if locks.enter_context(folder.locked()) and self._still_lacking(one, folder):
                        claimed.append(one)
                except DamagedError as error:
                    self._skip(one, error)
            if claimed:
                processes.from_main(followers.order(claimed))
                self._run_recording_failures(claimed)
        return len(claimed)

    def _still_lacking(self, one: Lacking, folder: TrainingFolder) -> bool:
        """Another process may have done it, or failed, between the look and the lock."""
        wanted = one.planned.cell.measurements
        there = folder.measured()
        return folder.failure() is None and any(wanted[pair] not in there for pair in one.pairs)

    def _run_recording_failures(self, group: list[Lacking]) -> None:
        """Runs a group; an error is recorded with its trainings, and the others go on."""
        # each compiled program holds memory maps, of which a process may have 65,530
        if (needed := _program(group[0].planned.cell)) != self._compiled:
            jax.clear_caches()
            self._compiled = needed
        try:
            self._run(group)
        except OSError as error:
            damage = misplaced(error)
            if damage is None:
                raise  # of the disk, which all trainings share
            self._skip_or_split(group, damage)
        except (DamagedError, checkpoint.DamagedCheckpointError) as error:
            self._skip_or_split(group, error)
        except Exception as error:
            self.stop.check()  # JAX may have made it of an interrupt
            if processes.is_lost(error):
                raise
            if _is_memory(error) and len(group) > 1:
                self._split(group)
                return
            reason = "not enough memory: " if _is_memory(error) else ""
            reason += f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            for one in group:
                folder = self.store.training(one.planned.cell, one.seed)
                folder.fail(reason, session=self.session.path.stem, traceback=traceback.format_exc())
                self.watch.said(
                    f"{title(one.planned, one.seed)} failed: {reason}; {folder.path / 'failed.json'} has the traceback"
                )
        finally:
            self.watch.ended()

    def _split(self, group: Sequence[Lacking]) -> None:
        """Runs the trainings of a group one after the other."""
        for one in group:
            self._run_recording_failures([one])

    def _skip_or_split(self, group: Sequence[Lacking], error: Exception) -> None:
        """Skips the training whose files are damaged, and no other."""
        if len(group) > 1:
            self._split(group)
        else:
            self._skip(group[0], error)

    def _skip(self, one: Lacking, error: Exception) -> None:
        name = title(one.planned, one.seed)
        self.skipped[name] = str(error)
        self.watch.said(f"{name} is skipped: {error}")

    def _run(self, group: list[Lacking]) -> None:
        planned, pairs = group[0].planned, group[0].pairs
        cell = replace(planned.cell, seeds=tuple(one.seed for one in group))
        folders = [self.store.training(cell, seed) for seed in cell.seeds]
        self._check(cell, pairs)
        began = time.monotonic()
        state = self._trained(planned, cell, folders)
        trained = time.monotonic()
        rows = self._measure(planned, cell, state, pairs)
        share = self.options.devices_per_seed
        columns = self.maker.columns(devices.together(len(group), share), share)
        for folder, seed in zip(folders, cell.seeds, strict=True):
            folder.finish([completed(row, **columns) for row in rows if row["seed"] == seed])
        work = {"training_seconds": trained - began, "evaluation_seconds": time.monotonic() - trained}
        peak = machine.peak_bytes()
        self.watch.finished(_title(planned, cell))
        for folder in folders:
            self.session.note(
                {"training": folder.path.name, "measurements": len(pairs), "together": len(group), **work, "peak_bytes": peak}
            )

    def _check(self, cell: Cell, pairs: frozenset[tuple[str, int]]) -> None:
        """Traces the evaluation, so that an error of a metric, say, comes before minutes of training; once for alike cells."""
        kind = (_program(cell), cell.method.variants, cell.evaluate, pairs, len(cell.seeds))
        if kind not in self._checked:
            check_evaluation(cell, only=pairs, devices_per_seed=self.options.devices_per_seed)
            self._checked.add(kind)

    def _trained(self, planned: Planned, cell: Cell, folders: list[TrainingFolder]) -> TrainState:
        """The states after training. Seeds that stand at the same step are trained together."""
        steps = processes.from_main([checkpoint.latest_step(folder.checkpoints) or 0 for folder in folders])
        state = None
        for step in sorted(set(steps)):
            chosen = [i for i, reached in enumerate(steps) if reached == step]
            part = replace(cell, seeds=tuple(cell.seeds[i] for i in chosen))
            state = self._train(planned, part, [folders[i] for i in chosen], step)
        if len(set(steps)) > 1:
            state = self._load([folder.checkpoints for folder in folders], cell)
        if state is None:
            raise RuntimeError("a training has at least one step")
        return state

    def _train(self, planned: Planned, cell: Cell, folders: list[TrainingFolder], start: int) -> TrainState:
        """Trains from the last checkpoint, or from the beginning."""
        checkpoints = [folder.checkpoints for folder in folders]
        state = self._load(checkpoints, cell)
        for folder, seed in zip(folders, cell.seeds, strict=True):
            folder.start(cell, seed, start)
        name = _title(planned, cell)
        self.watch.began(name, cell.train.steps, start)
        saved, reached = time.monotonic(), start

        def wanted(step: int) -> bool:
            return self.stop.requested or time.monotonic() - saved >= self.options.checkpoint_seconds

        with contextlib.ExitStack() as stack:
            told = [
                stack.enter_context(
                    trackers(
                        self.options.trackers,
                        folder.path,
                        title(planned, seed),
                        read_object(folder.path / "training.json") if self.options.trackers else {},
                        start=start,
                        report=self.watch.said,
                    )
                )
                for folder, seed in zip(folders, cell.seeds, strict=True)
            ]
            for number, now in enumerate(fit(cell, state, wanted=wanted, devices_per_seed=self.options.devices_per_seed)):
                if number == 0:
                    stack.enter_context(
                        self.stop.deferred()
                    )  # before this, a stop loses nothing, and may come while XLA compiles
                self._log(folders, told, now, now.step - reached)
                reached = now.step
                if now.state is not None:
                    state = now.state
                    checkpoint.save(checkpoints, state)
                    saved = time.monotonic()
                    if now.step < cell.train.steps:
                        self._check_stop()
        self.watch.ended()
        if state is None:
            raise RuntimeError("a training has at least one step")
        return state

    def _load(self, checkpoints: list[Path], cell: Cell) -> TrainState | None:
        return checkpoint.load(checkpoints, cell, devices_per_seed=self.options.devices_per_seed)

    def _check_stop(self) -> None:
        """Stops all processes of the program if one of them is asked to."""
        if processes.largest(self.stop.requested):
            processes.leave()
            self.stop.check()
            raise KeyboardInterrupt

    def _log(self, folders: list[TrainingFolder], told: list[Tracker], now: Progress, steps: int) -> None:
        speed = steps / max(now.seconds, 1e-9)
        for folder, tracker, loss in zip(folders, told, now.losses, strict=True):
            values = {"steps_per_second": round(speed, 2)} | ({"loss": float(loss)} if np.isfinite(loss) else {})
            folder.log({"step": now.step, "loss": values.get("loss"), "steps_per_second": values["steps_per_second"]})
            tracker.log(now.step, values)
        self.watch.moved(now.step, f"loss {np.mean(now.losses):.4f}  {speed:.1f} steps/s")

    def _measure(self, planned: Planned, cell: Cell, state: TrainState, pairs: frozenset[tuple[str, int]]) -> list[Row]:
        """The rows of some measurements of all seeds, in the order of the config."""
        self.watch.began(f"{_title(planned, cell)}, evaluating", len(pairs))
        rows: list[Row] = []
        diverged_at = processes.fetch(state.diverged_at)
        share = self.options.devices_per_seed
        for number, of_pair in enumerate(evaluate(cell, state.params, diverged_at, only=pairs, devices_per_seed=share), 1):
            self._check_stop()
            rows += of_pair
            self.watch.moved(number, "")
        self.watch.ended()
        return rows


def _title(planned: Planned, cell: Cell) -> str:
    """What the user reads of a group: "copy, RoPE, learning_rate=0.001, seeds 0, 1"."""
    one, *others = cell.seeds
    name = title(planned, one)
    return name if not others else name.replace(f"seed {one}", "seeds " + ", ".join(map(str, cell.seeds)))


def _program(cell: Cell) -> object:
    """Cells that are equal in this share compiled programs."""
    static, _ = split_numbers(cell)
    return static.task, static.method.encoder, static.method.policy, static.model, static.train


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
