"""Trains every cell of an experiment, evaluates it beyond the training length, and writes rows, tables and figures.

    python -m experiments.compare configs/quickstart.py --out out/quickstart --train.steps 300

The config comes first; the flags behind it change its values (`python -m experiments.compare CONFIG --help` lists them). A cell
that is already finished in the output folder is not run again.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from experiments import command
from experiments.cli import is_refusal, load_experiment, perhaps, refusing
from experiments.interrupt import interruptible
from rope_jax.report import plots, statistics, tables, terminal
from rope_jax.study import store
from rope_jax.study.config import Cell, Experiment
from rope_jax.study.provenance import provenance
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.training import devices

METRICS = ("exact_match", "token_accuracy")  # shown by default
_USAGE = "usage: python -m experiments.compare CONFIG --out DIR [--train.steps N ...]   (CONFIG first; CONFIG --help lists all)"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare position encodings: train, evaluate beyond the training length, write rows, tables and figures.

    Attributes:
      config: a Python file that defines experiment().
      out: the folder for the results; made if it does not exist.
      tasks: keep only these of the config's tasks, such as copy; all if not given.
      methods: keep only the config's methods with these names, such as RoPE; all if not given.
      encoders: keep only the methods whose encoder is of one of these classes, such as RoPE; all if not given.
      policies: keep only the methods whose position policy is of one of these classes, such as Contiguous; all if not given.
      seeds: one replica each.
      model: the model's sizes.
      train: training settings.
      evaluate: evaluation settings.
      metrics: columns of the rows, each shown in a table and a figure.
      checkpoint_seconds: a checkpoint is written when this much time has passed since the last, and at the end of training.
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
    checkpoint_seconds: float = 20.0
    compilation_cache: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must not be negative, got {self.checkpoint_seconds}; 0 saves every chunk")
        if not self.metrics:
            raise ValueError(f"--metrics must name at least one metric, such as {METRICS[0]}")

    def applied(self, experiment: Experiment) -> Experiment:
        """The config's experiment with the values of the command line."""
        methods = experiment.methods
        tasks = _kept("tasks", self.tasks, [(task.name, task) for task in experiment.tasks])
        picked = (
            _kept("methods", self.methods, [(method.label, method) for method in methods]),
            _kept("encoders", self.encoders, [(type(method.encoder).__name__, method) for method in methods]),
            _kept("policies", self.policies, [(type(method.policy).__name__, method) for method in methods]),
        )
        kept = []
        for method in (method for method in methods if all(method in one for one in picked)):
            remaining = tuple(task for task in tasks if task in (method.tasks or tasks))
            if remaining:
                kept.append(replace(method, tasks=remaining if method.tasks else ()))
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


def _kept(flag: str, wanted: tuple[str, ...], named: list[tuple[str, Any]]) -> tuple[Any, ...]:
    """The objects that have one of the wanted names, in the config's order; all of them if no name is given."""
    known = dict(named)
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"--{flag} {name} is not in the config{perhaps(name, known)}; it has {', '.join(dict.fromkeys(known))}"
            )
    return tuple(value for name, value in named if name in wanted or not wanted)


def parse(arguments: list[str]) -> tuple[Arguments, Experiment]:
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
    given = tyro.cli(Arguments, args=arguments, default=default, prog=f"python -m experiments.compare {arguments[0]}")
    experiment = given.applied(loaded)
    measured = {metric.name: metric for task in experiment.tasks for metric in (*task.metrics, *experiment.evaluate.metrics)}
    _kept("metrics", given.metrics, list(measured.items()))
    return given, experiment


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
    if not arguments or arguments[0].startswith("-"):
        help_asked = bool({"-h", "--help"} & set(arguments))
        print(*([__doc__] if help_asked else []), _USAGE, sep="\n", file=sys.stdout if help_asked else sys.stderr)
        sys.exit(0 if help_asked else 2)
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        with refusing(), command.failing(lambda: ""):
            given, experiment = parse(arguments)
            folder = _opened(stack, given.out, experiment)
            todo = folder.unfinished()
        for hint in hints(experiment):
            command.remark(hint)

        def state() -> str:
            left, cells = len(folder.unfinished()), len(experiment.cells())
            return f" with {left} of {cells} cells to do; the same command continues with them in {given.out}"

        interrupt.state = state
        with command.failing(lambda: f",{state()}"):
            if todo:
                # JAX is set up and the training code imported only now: errors in the command were reported before
                with refusing(when=is_refusal):
                    devices.configure(compilation_cache=given.compilation_cache)
                    _require_possible(todo, force=given.force)
                    session = shlex.join(["python", "-m", "experiments.compare", *arguments])
                    run_cells(folder, todo, session, given.checkpoint_seconds, interrupt.check)
            with refusing():
                rows = folder.rows()
                curves = {metric: statistics.curves(rows, metric) for metric in given.metrics}
            write_report(folder.path, curves)
    complete = f"{folder.path}: {len(todo)} of {len(experiment.cells())} cells were run now; table.md there has the full tables"
    command.show(terminal.table(curves, shutil.get_terminal_size().columns) + f"\n{complete}", f"all files are in {folder.path}")


def _opened(stack: ExitStack, out: Path, experiment: Experiment) -> store.RunFolder:
    """Opens the folder of --out until the stack is closed; an error says that it is about that flag."""
    try:
        return stack.enter_context(store.open_run(out, experiment))
    except ValueError as error:
        raise ValueError(f"--out: {error}") from error


def _require_possible(cells: list[Cell], *, force: bool) -> None:
    """Prints the least cost of cells; raises ValueError if the machine cannot run them, unless `force`."""
    from rope_jax.study import cost

    estimate = cost.estimate(cells)
    command.remark(str(estimate))
    if not force:
        estimate.require_possible()


def run_cells(
    folder: store.RunFolder, cells: list[Cell], session: str, checkpoint_seconds: float, check: Callable[[], None]
) -> None:
    """Trains and evaluates cells one after the other.

    Args:
      folder, cells: where, and what.
      session: the command that run.json notes.
      checkpoint_seconds: as the flag.
      check: is called often, and may raise an exception to stop.
    """
    from experiments.cell import display, run_cell
    from rope_jax.training.evaluate import check_evaluation

    command.silence_libraries()
    check_evaluation(cells[0])  # before anything is written; the other cells before their training
    folder.note_session(provenance(session, cells, devices.names(len(folder.experiment.seeds))))
    with display() as progress:
        whole = progress.add_task(folder.experiment.name, total=len(cells), status="cells")
        for number, cell in enumerate(cells, 1):
            title = f"{number}/{len(cells)} {cell.task.name}, {cell.method.label}"
            run_cell(cell, folder.cell(cell), progress, title, checkpoint_seconds, check)
            progress.update(whole, advance=1)
            if progress.disable:  # no bar where stderr is no terminal
                command.remark(f"{title} is finished")


def write_report(folder: Path, curves: Mapping[str, list[statistics.Curve]]) -> None:
    """Writes table.md and table.tex, and a figure for each metric, beside the rows.

    The figure of exact match is accuracy_by_length.png and .svg, that of another metric METRIC_by_length.png and .svg.
    """
    store.write_whole(folder / "table.md", tables.markdown(curves))
    store.write_whole(folder / "table.tex", tables.latex(curves))
    for metric, lines in curves.items():
        name = "accuracy" if metric == "exact_match" else metric
        for kind, image in plots.by_length(lines).items():
            store.write_whole(folder / f"{name}_by_length.{kind}", image)


if __name__ == "__main__":
    command.run(main)
