"""Runs the trainings that --training names, or all that are missing: the one command around which every launcher is built.

    python -m experiments.cell configs/quickstart.py --out out/quickstart --training 0123456789 abcdef0123

It takes the flags of `python -m experiments.compare` and writes no report. Any number of these commands may run in one folder, on
any number of machines: each takes what no other has taken. What is finished is not run again. Exit status: 0 if nothing is left
to do, or others are doing it; 1 if a training failed; 143 if it was asked to stop, by SIGTERM or SIGUSR2: the training state is
then saved, and the same command goes on.
"""

import shlex
import signal
import sys
from pathlib import Path

from experiments import command
from experiments.arguments import Arguments, parse
from experiments.cli import is_refusal, refusing
from experiments.display import Display
from experiments.interrupt import interruptible
from rope_jax.study.config import Experiment
from rope_jax.study.gather import title
from rope_jax.study.launchers.base import Launch
from rope_jax.study.options import Options
from rope_jax.study.plan import Plan, lacking, make_plan
from rope_jax.study.stop import StopRequest
from rope_jax.study.store import Store, open_store
from rope_jax.training import devices, processes

_PROGRAM = "experiments.cell"


def main(arguments: list[str]) -> None:
    """The command; `arguments` as in sys.argv[1:]."""
    command.require_config(arguments, __doc__, _PROGRAM)
    signals = (signal.SIGUSR2,) if hasattr(signal, "SIGUSR2") else ()
    with interruptible(also=signals) as interrupt, command.failing(lambda: ""):
        with refusing():
            given, experiment = parse(arguments, _PROGRAM)
            store = opened(given.out)
            unknown = set(given.training) - _identities(make_plan(experiment, store))
        for identity in sorted(unknown):
            command.remark(f"note: the study has no training {identity}, or not before its trials are done")
        failed = _run(arguments, given, experiment, store, interrupt)
    for line in failed:
        command.remark(line)
    sys.exit(1 if failed else 0)


def _run(arguments: list[str], given: Arguments, experiment: Experiment, store: Store, stop: StopRequest) -> list[str]:
    """Runs what is missing of the named trainings; a line for each of them that failed."""
    from rope_jax.study.launchers.here import worker

    only = set(given.training) or None
    if given.coordinator is None and not any(
        only is None or one.planned.cell.training(one.seed) in only for one in lacking(make_plan(experiment, store), store)
    ):
        return _failures(experiment, store, only)
    with refusing(when=is_refusal), Display() as display:
        request = launch(arguments, given, experiment, store, stop, display, _PROGRAM)
        configure(given)
        prepare(given, experiment, store, only)
        mine = worker(request)
        mine.only = only
        mine.run()
    if not processes.is_main():
        return []
    return [*_failures(experiment, store, only), *(f"{name} is skipped: {reason}" for name, reason in mine.skipped.items())]


def _failures(experiment: Experiment, store: Store, only: set[str] | None) -> list[str]:
    found = []
    for planned in make_plan(experiment, store).planned:
        for seed in planned.cell.seeds:
            if only is None or planned.cell.training(seed) in only:
                reason = store.training(planned.cell, seed).failure()
                found += [f"{title(planned, seed)} failed: {reason}"] if reason is not None else []
    return found


def _identities(plan: Plan) -> set[str]:
    return {planned.cell.training(seed) for planned in plan.planned for seed in planned.cell.seeds}


def opened(out: Path, *, to_write: bool = True) -> Store:
    """The store in --out; an error says that it is about that flag."""
    try:
        return open_store(out, to_write=to_write)
    except ValueError as error:
        raise ValueError(f"--out: {error}") from error


def launch(
    arguments: list[str],
    given: Arguments,
    experiment: Experiment,
    store: Store,
    stop: StopRequest,
    display: Display,
    program: str,
) -> Launch:
    """What a launcher is given."""
    options = Options(
        checkpoint_seconds=given.checkpoint_seconds,
        seeds_together=given.seeds_per_job,
        devices_per_seed=given.devices_per_seed,
        trackers=given.track,
    )
    return Launch(
        experiment=experiment,
        store=store,
        arguments=arguments,
        command=shlex.join(["python", "-m", program, *arguments]),
        options=options,
        cores=given.cores,
        jobs=given.jobs,
        seeds_per_job=given.seeds_per_job,
        slurm=given.slurm,
        finished_before=given.finished_before,
        stop=stop,
        watch=display,
    )


def configure(given: Arguments) -> None:
    """Configures JAX; where this process is one of several that are one program, they meet."""
    if given.coordinator is not None:
        processes.initialize(given.coordinator, given.num_processes, given.process_id)
    devices.configure(cores=given.cores, compilation_cache=given.compilation_cache)
    command.silence_libraries()


def prepare(given: Arguments, experiment: Experiment, store: Store, only: set[str] | None = None) -> None:
    """Prints the least cost, and traces the first evaluation, before anything is written. JAX must be configured.

    Raises:
      ValueError: the machine cannot run it, unless --force; or the evaluation is refused.
    """
    from rope_jax.study import cost
    from rope_jax.training.evaluate import check_evaluation

    missing = [
        one for one in lacking(make_plan(experiment, store), store) if only is None or one.planned.cell.training(one.seed) in only
    ]
    cells = list({id(one.planned): one.planned.cell for one in missing}.values())
    if not cells:
        return
    estimate = cost.estimate(cells)
    if processes.is_main():
        command.remark(str(estimate))
    if not given.force:
        estimate.require_possible()
    try:
        check_evaluation(cells[0], devices_per_seed=given.devices_per_seed)
    except Exception as error:  # a fault of a class of the user's is recorded with its training
        if isinstance(error, ValueError) and is_refusal(error):
            raise


if __name__ == "__main__":
    command.run(main)
