"""Trains every cell of an experiment, evaluates it beyond the training length, and writes rows, tables and a plot.

    python -m experiments.compare configs/quickstart.py --out out/quickstart --train.steps 300

The config comes first; what follows changes its values (`python -m experiments.compare CONFIG --help` lists them). What is
already finished in the output folder is not run again.
"""

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from experiments.cli import interruptible, load_experiment, perhaps, refusing
from rope_jax.report import plots, tables
from rope_jax.study import store
from rope_jax.study.config import Cell, EvaluateConfig, Experiment, ModelConfig, TrainConfig
from rope_jax.training import devices

_USAGE = "usage: python -m experiments.compare CONFIG --out DIR [--train.steps N ...]   (CONFIG first; CONFIG --help lists all)"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare position encodings: train, evaluate beyond the training length, write rows, tables and a plot.

    Attributes:
      config: a Python file that defines experiment().
      out: the folder for the results; made if need be.
      tasks: keep only these of the config's tasks, such as copy; all if not given.
      encoders: keep only these of the config's encoders, such as RoPE; all if not given.
      policies: keep only these of the config's position policies, such as Contiguous; all if not given.
      seeds: one replica each.
      model: the model's sizes.
      train: training settings.
      evaluate: evaluation settings.
      checkpoint_seconds: a checkpoint is written when so much time has passed since the last, and at the end of training.
      compilation_cache: keep compiled programs for the next run, in $JAX_COMPILATION_CACHE_DIR or the user's cache folder.
    """

    config: tyro.conf.Positional[Path]
    out: Path
    tasks: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...]
    model: ModelConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    checkpoint_seconds: float = 20.0
    compilation_cache: bool = True

    def __post_init__(self) -> None:
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must not be negative, got {self.checkpoint_seconds}; 0 saves every chunk")

    def applied(self, experiment: Experiment) -> Experiment:
        """The config's experiment with the values of the command line."""
        methods = experiment.methods
        tasks = _kept("tasks", self.tasks, [(task.name, task) for task in experiment.tasks])
        of_encoder = _kept("encoders", self.encoders, [(type(method.encoder).__name__, method) for method in methods])
        of_policy = _kept("policies", self.policies, [(type(method.policy).__name__, method) for method in methods])
        both = [method for method in methods if method in of_encoder and method in of_policy]
        meant = [(method, tuple(task for task in tasks if task in (method.tasks or tasks))) for method in both]
        kept = tuple(replace(method, tasks=own if method.tasks else ()) for method, own in meant if own)
        if not kept:
            raise ValueError("no method of the config is left by --tasks, --encoders and --policies together; drop one of them")
        return replace(
            experiment,
            tasks=tuple(task for task in tasks if any(task in (method.tasks or tasks) for method in kept)),
            methods=kept,
            seeds=self.seeds,
            model=self.model,
            train=self.train,
            evaluate=replace(self.evaluate, metrics=experiment.evaluate.metrics),
        )


def _kept(flag: str, wanted: tuple[str, ...], named: list[tuple[str, Any]]) -> tuple[Any, ...]:
    """The objects of the wanted names, in the config's order; all if none is named."""
    known = dict(named)
    for name in wanted:
        if name not in known:
            raise ValueError(f"--{flag} {name} is not in the config{perhaps(name, known)}; it has {', '.join(known)}")
    return tuple(value for name, value in named if name in wanted or not wanted)


def parse(arguments: list[str]) -> tuple[Arguments, Experiment]:
    """Reads a command line, and the experiment that it asks for; ValueError or exit 2 if that is impossible."""
    loaded = load_experiment(Path(arguments[0]))
    default = Arguments(
        config=tyro.MISSING,
        out=tyro.MISSING,
        seeds=loaded.seeds,
        model=loaded.model,
        train=loaded.train,
        evaluate=replace(loaded.evaluate, metrics=()),  # metrics are objects, which no flag can write
    )
    given = tyro.cli(Arguments, args=arguments, default=default, prog=f"python -m experiments.compare {arguments[0]}")
    return given, given.applied(loaded)


def hints(experiment: Experiment) -> list[str]:
    """What is possible, but probably not meant."""
    found = []
    for cell in experiment.cells():
        trained = cell.task.input_length(cell.train.max_length)
        for variant in cell.method.all_variants:
            for presumed in sorted(variant.encoder.presumed_lengths - {trained}):
                found.append(
                    f"note: {variant.name!r} has original_length={presumed}, but training on "
                    f"{cell.task.name} goes up to {trained} input positions"
                )
    return list(dict.fromkeys(found))


def main(arguments: list[str]) -> None:
    """The command; `arguments` as in sys.argv[1:]."""
    if not arguments or arguments[0].startswith("-"):
        help_asked = bool({"-h", "--help"} & set(arguments))
        print(*([__doc__] if help_asked else []), _USAGE, sep="\n", file=sys.stdout if help_asked else sys.stderr)
        sys.exit(0 if help_asked else 2)
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        with refusing():
            given, experiment = parse(arguments)
            folder = stack.enter_context(store.open_run(given.out, experiment))
        for hint in hints(experiment):
            print(hint, file=sys.stderr)
        todo = folder.unfinished()
        try:
            command = shlex.join(["python", "-m", "experiments.compare", *arguments])
            with refusing(store.DamagedError):
                if todo:
                    # JAX is set up and the training code imported only now: what is wrong with a command was said before
                    devices.configure(replicas=len(experiment.seeds), compilation_cache=given.compilation_cache)
                    run_cells(folder, todo, command, given.checkpoint_seconds, interrupt.check)
        except (KeyboardInterrupt, Exception) as error:
            if not interrupt.asked and not isinstance(error, KeyboardInterrupt):
                raise
            left, cells = len(folder.unfinished()), len(experiment.cells())
            print(
                f"\ninterrupted with {left} of {cells} cells to do; the same command goes on with them in {given.out}",
                file=sys.stderr,
            )
            sys.exit(130)
        with refusing(store.DamagedError):
            rows = folder.rows()
        write_report(folder.path, rows)
    print(tables.markdown(rows))
    print(f"{folder.path}: {len(todo)} of {len(experiment.cells())} cells were run now; rows, tables and plot are there")


def run_cells(
    folder: store.RunFolder, cells: list[Cell], command: str, checkpoint_seconds: float, check: Callable[[], None]
) -> None:
    """Trains and evaluates cells, one after the other. `check` is called often, and may raise."""
    from experiments.cell import display, run_cell

    folder.note_session(store.provenance(command, cells, devices.names(len(folder.experiment.seeds))))
    with display() as progress:
        whole = progress.add_task(folder.experiment.name, total=len(cells), status="cells")
        for number, cell in enumerate(cells, 1):
            names = (cell.task.name, type(cell.method.encoder).__name__, type(cell.method.policy).__name__)
            title = f"{number}/{len(cells)} {' '.join(names)}"
            run_cell(cell, folder.cell(cell), progress, title, checkpoint_seconds, check)
            progress.update(whole, advance=1)
            if progress.disable:  # no bar where stderr is no terminal
                print(f"{title} is finished", file=sys.stderr, flush=True)


def write_report(folder: Path, rows: list[store.Row]) -> None:
    """Writes table.md, table.tex and accuracy_by_length.png and .svg beside the rows."""
    store.write_whole(folder / "table.md", tables.markdown(rows))
    store.write_whole(folder / "table.tex", tables.latex(rows))
    for kind, image in plots.accuracy_by_length(rows).items():
        store.write_whole(folder / f"accuracy_by_length.{kind}", image)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:  # before anything runs, or while the report is written: the same command does that again
        sys.exit(130)
