"""Trains every method of an experiment, evaluates it beyond the training length, and writes rows, tables and figures.

    python -m experiments.compare configs/quickstart.py --out out/quickstart --train.steps 300

The config comes first; the flags behind it change its values (`python -m experiments.compare CONFIG --help` lists them). What is
there already in the output folder is not run again: the same command goes on after any interruption, and a config that has grown
(seeds, lengths, examples, variants, methods, tasks) runs only what is new.
"""

import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from experiments import command
from experiments.arguments import Arguments, parse
from experiments.cell import configure, launch, opened, prepare
from experiments.cli import is_refusal, refusing
from experiments.display import Display
from experiments.interrupt import interruptible
from rope_jax.report import statistics, tables, terminal
from rope_jax.study.config import Experiment
from rope_jax.study.files import write_whole
from rope_jax.study.gather import Gathered, gather, write_rows
from rope_jax.study.launchers import launcher
from rope_jax.study.plan import lacking, make_plan, progress
from rope_jax.study.status import read_status
from rope_jax.study.stop import StopRequest
from rope_jax.study.store import Store, read_store
from rope_jax.training import processes

_PROGRAM = "experiments.compare"


def hints(experiment: Experiment) -> list[str]:
    """Remarks on settings that are possible, but probably not intended."""
    remarks = []
    for cell in experiment.cells():
        trained = cell.task.input_length(cell.train.max_length)
        for variant in cell.method.all_variants:
            for original in sorted(variant.encoder.requirements.original_lengths - {trained}):
                remarks.append(
                    f"note: {cell.method.label!r}, {variant.name!r} has original_length={original}, but training on "
                    f"{cell.task.name} goes up to {trained} input positions"
                )
    return list(dict.fromkeys(remarks))


def main(arguments: list[str]) -> None:
    """The command; `arguments` as in sys.argv[1:]."""
    command.require_config(arguments, __doc__, _PROGRAM)
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        with refusing(), command.failing(lambda: ""):
            given, experiment = parse(arguments)
            store = opened(given.out, to_write=not (given.status or given.dry_run or given.list))
            if _only_printed(given, experiment, store):
                return
            several = given.coordinator is not None and given.launcher == "here"
            if several:
                configure(given)
            if not several or processes.is_main():
                _take_over(given, experiment, store)
            finished_before, left = progress(experiment, store)
        for hint in hints(experiment):
            command.remark(hint)

        def state() -> str:
            finished, left = progress(experiment, store)
            return f" with {left} of {finished + left} trainings to do; the same command continues with them in {given.out}"

        interrupt.state = state
        with command.failing(lambda: f",{state()}"), refusing(when=is_refusal):
            if (left or several) and not _run(arguments, given, experiment, store, interrupt):
                return
            gathered = gather(make_plan(experiment, store), store)
            curves = {metric: statistics.curves(gathered.rows, metric) for metric in given.metrics if gathered.rows}
            if gathered.rows:
                write_rows(gathered, store)
                write_report(store.path, curves)
    _show(given.out, gathered, curves, progress(experiment, store)[0] - finished_before)


def _only_printed(given: Arguments, experiment: Experiment, store: Store) -> bool:
    """Whether the flags ask only to print something; it is then printed."""
    if given.status:
        command.show(read_status(experiment, store).text(), "nothing was to be written")
    elif given.list:
        missing = [one.planned.cell.training(one.seed) for one in lacking(make_plan(experiment, store), store)]
        command.show("\n".join(dict.fromkeys(missing)), "nothing was to be written")
    elif given.dry_run:
        from rope_jax.study.dry_run import dry_run

        command.show(dry_run(experiment, store), "nothing was to be written")
    return given.status or given.list or given.dry_run


def _take_over(given: Arguments, experiment: Experiment, store: Store) -> None:
    """Takes trainings from the folders of --reuse, and forgets failures with --retry-failed."""
    plan = make_plan(experiment, store)
    for folder in given.reuse:
        try:
            other = read_store(folder)
        except ValueError as error:
            raise ValueError(f"--reuse: {error}") from error
        store.path.mkdir(parents=True, exist_ok=True)
        store.begin()
        taken = sum(store.take(other, planned.cell, seed) for planned in plan.planned for seed in planned.cell.seeds)
        command.remark(f"{taken} trainings are taken over from {folder}")
    if given.retry_failed:
        for planned in plan.planned:
            for seed in planned.cell.seeds:
                store.training(planned.cell, seed).forgive()


def _run(arguments: list[str], given: Arguments, experiment: Experiment, store: Store, stop: StopRequest) -> bool:
    """Launches what is missing; whether it is over, so that a report can be written."""
    if given.launcher == "here":
        if given.coordinator is None:
            configure(given)
        prepare(given, experiment, store)
    with Display() as display:
        return launcher(given.launcher)(launch(arguments, given, experiment, store, stop, display, _PROGRAM))


def write_report(folder: Path, curves: Mapping[str, list[statistics.Curve]]) -> None:
    """Writes table.md and table.tex, and a figure for each metric, beside the rows.

    The figure of exact match is accuracy_by_length.png and .svg, that of another metric METRIC_by_length.png and .svg.
    """
    from rope_jax.report import plots  # matplotlib takes a quarter of the time that --status takes

    write_whole(folder / "table.md", tables.markdown(curves))
    write_whole(folder / "table.tex", tables.latex(curves))
    for metric, lines in curves.items():
        name = "accuracy" if metric == "exact_match" else metric
        for kind, image in plots.by_length(lines).items():
            write_whole(folder / f"{name}_by_length.{kind}", image)


def _show(out: Path, gathered: Gathered, curves: Mapping[str, list[statistics.Curve]], run_now: int) -> None:
    """Prints the tables, and what is wrong; exits with 1 if a training failed or diverged."""
    if whole := len({row["training"] for row in gathered.rows}):
        complete = f"{out}: {run_now} of {whole} trainings were run now; table.md there has the full tables"
        command.show(terminal.table(curves, shutil.get_terminal_size().columns) + f"\n{complete}", f"all files are in {out}")
    for name, reason in gathered.failed.items():
        command.remark(f"failed: {name}: {reason}")
    for name in gathered.diverged:
        command.remark(f"diverged: {name}")
    for name in gathered.missing:
        command.remark(f"missing: {name}")
    if gathered.failed:
        command.remark("the tables leave these out; --retry-failed tries them again")
    if gathered.failed or gathered.diverged or gathered.missing:
        sys.exit(1)


if __name__ == "__main__":
    command.run(main)
