"""`--launcher slurm`: an array of jobs for what is missing, and a job after them that runs the launching command again.

Nothing stays where the command was called. A training is finished when its rows are in the folder of the study, whatever became
of its job. A job that dies leaves its trainings to the next array, which the job after the array submits. The last one of these
writes the report.
"""

import itertools
import sys
from collections.abc import Sequence

from rope_jax.study.launchers import batch
from rope_jax.study.launchers.base import Launch
from rope_jax.study.plan import Lacking, lacking, make_plan, progress


def launch(launch: Launch) -> bool:
    """Submits jobs for what is missing and not in the queue yet.

    Returns:
      False: the work goes on when this returns. True if nothing is missing.

    Raises:
      ValueError: SLURM refuses the jobs, or this is the job after an array that finished nothing.
    """
    store, say = launch.store, launch.watch.said
    store.begin()
    missing = list(lacking(make_plan(launch.experiment, store), store))
    if not missing:
        return True
    waiting = batch.queued(store.path)
    new = [one for one in missing if one.planned.cell.training(one.seed) not in waiting]
    if not new:
        say(f"all {len(missing)} missing trainings are in SLURM's queue already; --status says how it goes")
        return False
    finished, _ = progress(launch.experiment, store)
    if launch.finished_before is not None and finished <= launch.finished_before:
        raise ValueError(
            f"the last jobs finished no training, and {len(new)} are missing; see the logs in {store.path / 'launch'}, and call "
            "the command again when the cause is removed"
        )
    jobs = _jobs(new, launch.seeds_per_job)[: batch.largest_array()]  # the next array takes the rest
    cell = [sys.executable, "-m", "experiments.cell", *launch.arguments, "--training"]
    number = batch.submit(cell, jobs, store.path, launch.slurm)
    after = batch.submit_after(number, _again(launch.arguments, finished), store.path, launch.slurm)
    count = sum(map(len, jobs))
    say(
        f"{len(jobs)} jobs of SLURM ({number}) run {count} trainings, then job {after} what comes next; --status says how it goes"
    )
    return False


def _again(arguments: Sequence[str], finished: int) -> list[str]:
    """The command after an array. What failed in the array is not tried again, or it might go on for ever."""
    kept = [argument for argument in arguments if argument not in ("--retry-failed", "--retry_failed")]
    if "--finished-before" in kept:  # of the array before
        place = kept.index("--finished-before")
        del kept[place : place + 2]
    return [sys.executable, "-m", "experiments.compare", *kept, "--finished-before", str(finished)]


def _jobs(missing: Sequence[Lacking], seeds_per_job: int | None) -> list[list[str]]:
    """The identities of the trainings of each job: seeds of one cell, which are trained in one program."""
    jobs: list[list[str]] = []
    for _, group in itertools.groupby(missing, key=lambda one: id(one.planned)):
        names = [one.planned.cell.training(one.seed) for one in group]
        size = seeds_per_job or len(names)
        jobs += [names[start : start + size] for start in range(0, len(names), size)]
    return jobs
