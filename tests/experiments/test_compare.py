"""`python -m experiments.compare` as a user runs it: outputs, second runs, bad input, Ctrl-C."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import experiments.cell
from experiments.cli import load_experiment
from experiments.compare import main, parse
from rope_jax.study.store import read_rows
from rope_jax.training import evaluate, train

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.py")
FIGURES = [f"{name}_by_length.{kind}" for name in ("accuracy", "token_accuracy") for kind in ("png", "svg")]
REPORT = ["rows.jsonl", "table.md", "table.tex", *FIGURES]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config file of the toy experiment: two tasks, two encoders, two variants."""
    path = tmp_path_factory.mktemp("configs") / "toy.py"
    path.write_text(f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\nfrom conftest import toy_experiment as experiment\n")
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of a finished run; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("run") / "out"
    main([str(config), "--out", str(out)])
    return out


@pytest.fixture
def run(config, finished, tmp_path):
    """A copy of the finished run, the command that made it, and the cells that it then runs again."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    return out, [str(config), "--out", str(out)]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def ran(monkeypatch):
    """The ids of the cells that are run, as they are run."""
    ids = []
    run_cell = experiments.cell.run_cell

    def noted(cell, *rest):
        ids.append(cell.id)
        run_cell(cell, *rest)

    monkeypatch.setattr(experiments.cell, "run_cell", noted)
    return ids


def test_a_finished_cell_leaves_no_compiled_program(run, ran):
    """So that a run of any number of cells stays within the memory maps that a process may have."""
    out, command = run
    shutil.rmtree(next((out / "cells").glob("copy-rope-*")))
    (out / "rows.jsonl").unlink()
    main(command)
    assert len(ran) == 1
    for program in (train.train_chunk, train.init_replicas, evaluate.measure_replicas):
        assert program._cache_size() == 0


@pytest.mark.parametrize(("flags", "kept"), [([], True), (["--no-compilation-cache"], False)])
def test_compiled_programs_are_kept_on_disk_unless_refused(config, tmp_path, flags, kept):
    keep = {name: jax.config.values[name] for name in ("jax_enable_compilation_cache", "jax_compilation_cache_dir")}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "compiled"))
    compilation_cache.reset_cache()
    try:
        jax.clear_caches()
        main([str(config), "--out", str(tmp_path / "out"), "--encoders", "RoPE", "--tasks", "copy", *flags])
        assert any((tmp_path / "compiled").glob("*train_chunk*")) == kept
    finally:
        for name, value in keep.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_a_run_writes_what_it_promises(finished, toy):
    assert {path.name for path in finished.iterdir()} == {"run.json", "cells", *REPORT}
    rows = read_rows(finished / "rows.jsonl")
    # (one variant of Learned, three of RoPE) x 2 tasks x 2 seeds x 3 lengths
    assert len(rows) == (1 + 3) * 2 * 2 * 3
    metrics = {"exact_match": float, "token_accuracy": float, "content_error": float, "end_error": float}
    columns = {
        "task": str, "task_options": str, "method": str, "encoder": str, "encoder_options": str, "policy": str,
        "policy_options": str, "variant": str, "variant_encoder": (str, type(None)), "variant_policy": type(None),
        "privileged": list, "cell": str, "seed": int, "train_steps": int, "train_length": int, "length": int, "status": str,
        "distinct": float, "seen": float, "count": int, **metrics,
    }  # fmt: skip
    hashes = {cell.id: cell.hash for cell in toy.cells()}
    for row in rows:
        assert list(row) == list(columns)
        for name, kind in columns.items():
            assert isinstance(row[name], kind), name
        assert row["count"] == 16
        assert 0 <= row["exact_match"] <= row["token_accuracy"] <= 1
        assert row["cell"] in hashes.values()
        assert row["privileged"] == (["length"] if row["variant"] == "DynamicNTK" else [])
        assert row["method"] == {"Learned": "Learned(max_length=32)", "RoPE": "RoPE"}[row["encoder"]]
    assert {row["variant"]: row["variant_encoder"] for row in rows} == {
        "as-trained": None,
        "NTK 2": "RoPE(scaling=NTK(factor=2.0))",
        "DynamicNTK": "RoPE(scaling=DynamicNTK(original_length=8))",
    }
    assert {(row["task"], row["encoder"], row["variant"]) for row in rows} == {
        (task, encoder, variant)
        for task in ("copy", "reverse")
        for encoder, variant in (("Learned", "as-trained"), *(("RoPE", v) for v in ("as-trained", "NTK 2", "DynamicNTK")))
    }
    record = json.loads((finished / "run.json").read_text())
    assert record["experiment"]["train"]["steps"] == 8
    [session] = record["sessions"]
    assert session["command"].startswith("python -m experiments.compare ")
    assert session["devices"] == ["cpu:0 (cpu)", "cpu:1 (cpu)"]
    assert session["cells"] == [cell.id for cell in toy.cells()]
    for cell in toy.cells():
        folder = finished / "cells" / cell.id
        assert cell.id.endswith(cell.hash)
        assert {path.name for path in folder.iterdir()} == {"config.json", "metrics.jsonl", "checkpoint", "rows.jsonl"}
        assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [8]
        assert json.loads((folder / "config.json").read_text())["task"]["type"].lower() == cell.task.name


def test_a_second_run_does_nothing_and_says_the_same(run, ran, capsys):
    out, command = run
    before = contents(out)
    main(command)
    assert ran == []
    assert contents(out) == before
    printed = capsys.readouterr()
    assert printed.out.startswith("exact match by length, mean over seeds\n\ntask ")
    assert printed.out.endswith(f"{out}: 0 of 4 cells were run now; table.md there has the full tables\n")
    assert printed.err == ""  # nor an estimate


def test_what_is_deleted_is_rebuilt_without_training(run, ran):
    out, command = run
    before = contents(out)
    for lost in REPORT:
        (out / lost).unlink()
    main(command)
    shutil.rmtree(out / "cells")  # the rows of the run are enough
    main(command)
    assert ran == []
    assert contents(out) == {name: content for name, content in before.items() if not name.startswith("cells/")}


def test_one_deleted_cell_is_run_again_alone_and_alike(run, ran, toy):
    out, command = run
    before = contents(out)
    shutil.rmtree(out / "cells" / toy.cells()[1].id)
    (out / "rows.jsonl").unlink()
    main(command)
    assert ran == [toy.cells()[1].id]
    after = contents(out)
    for name in REPORT:
        assert after[name] == before[name]
    sessions = json.loads(after["run.json"])["sessions"]
    assert [session["cells"] for session in sessions] == [[cell.id for cell in toy.cells()], ran]


def test_a_folder_is_continued_after_options_and_names_were_added(run, ran, config, tmp_path):
    """An encoder's class gets an option with a default, and the methods get names: no cell is run, rows have the new names."""
    out, command = run
    before = contents(out)
    newer = tmp_path / "newer.py"
    newer.write_text(
        config.read_text()
        + """
import dataclasses
from dataclasses import dataclass, replace
import rope_jax as rj
@dataclass(frozen=True, kw_only=True)
class RoPE(rj.RoPE):
    added: int = 3
def renewed(encoder):
    return RoPE(**{f.name: getattr(encoder, f.name) for f in dataclasses.fields(encoder)})
def experiment(toy=experiment):
    toy = toy()
    learned, rope = toy.methods
    variants = tuple(replace(v, encoder=renewed(v.encoder)) for v in rope.variants)
    return replace(toy, methods=(learned, replace(rope, name="rotary", encoder=renewed(rope.encoder), variants=variants)))
"""
    )
    main([str(newer), *command[1:]])
    assert ran == []
    renamed = [
        row | {"method": "rotary"} if row["method"] == "RoPE" else row
        for row in map(json.loads, before["rows.jsonl"].splitlines())
    ]
    assert read_rows(out / "rows.jsonl") == renamed
    assert "| rotary " in (out / "table.md").read_text()
    assert contents(out)["run.json"] == before["run.json"]
    newer.write_text(newer.read_text().replace("return RoPE(", "return RoPE(added=4, "))
    with pytest.raises(SystemExit):
        main([str(newer), *command[1:]])


def test_any_metric_is_tabulated_and_drawn(run, ran, capsys):
    out, command = run
    main([*command, "--metrics", "end_error", "exact_match"])
    assert ran == []
    assert (out / "table.md").read_text().startswith("### End error")
    assert (out / "end_error_by_length.svg").exists()
    assert capsys.readouterr().out.startswith("end error by length")
    with pytest.raises(SystemExit):
        main([*command, "--metrics", "accuracy"])
    text = "--metrics accuracy is not in the config (perhaps you meant token_accuracy?); it has exact_match, token_accuracy, "
    assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):  # before anything is written
        main([command[0], "--out", str(out.parent / "new"), "--metrics", "accuracy"])
    assert not (out.parent / "new").exists()


def test_a_trained_cell_without_rows_is_evaluated_without_training(run, toy, monkeypatch):
    out, command = run
    before = contents(out)
    (out / "cells" / toy.cells()[0].id / "rows.jsonl").unlink()
    (out / "rows.jsonl").unlink()

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("rope_jax.training.train.train_chunk", refuse)
    main(command)
    assert contents(out)["rows.jsonl"] == before["rows.jsonl"]


def test_an_interrupted_cell_goes_on_from_its_checkpoint_to_the_same_rows(config, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = [str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy", "--checkpoint-seconds", "0"]
    main(command)
    whole = read_rows(out / "rows.jsonl")
    assert whole == [row for row in read_rows(finished / "rows.jsonl") if (row["task"], row["encoder"]) == ("copy", "RoPE")]
    shutil.rmtree(out)
    monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left: 4)
    log = experiments.cell.CellFolder.log

    def stop(folder, metrics):
        log(folder, metrics)
        if metrics["step"] == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(experiments.cell.CellFolder, "log", stop)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 130
    monkeypatch.setattr(experiments.cell.CellFolder, "log", log)
    [folder] = (out / "cells").iterdir()
    assert [path.name for path in (folder / "checkpoint" / "0").iterdir()] == ["4"]
    main(command)
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [4, 8]
    assert read_rows(out / "rows.jsonl") == whole


def test_an_interrupt_that_is_swallowed_is_heard_at_the_next_step(config, tmp_path, monkeypatch, capsys):
    """As one that comes while JAX runs a callback, which drops what is raised in it, or that JAX raises as something else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = experiments.cell.CellFolder.start
    for wrapped in (False, True):
        out = tmp_path / str(wrapped)

        def swallow(folder, cell, step, wrapped=wrapped):
            start(folder, cell, step)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                if wrapped:
                    raise ValueError("something else") from error

        monkeypatch.setattr(experiments.cell.CellFolder, "start", swallow)
        with pytest.raises(SystemExit) as ended:
            main([str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy"])
        assert ended.value.code == 130
        assert "interrupted with 1 of 1 cells to do" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_damaged_checkpoint_is_named_with_the_remedy(run, toy, capsys):
    out, command = run
    folder = out / "cells" / toy.cells()[0].id
    (folder / "rows.jsonl").unlink()
    (out / "rows.jsonl").unlink()
    (folder / "checkpoint" / "1" / "8" / "state" / "_METADATA").write_text("{")
    with pytest.raises(SystemExit) as ended:
        main(command)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.search(r"error: checkpoint .*checkpoint/1/8 cannot be read .*; delete it to train again from the beginning", said)


def test_a_stale_original_length_is_pointed_out(config, tmp_path, capsys):
    flags = "--train.max-length 2 --train.steps 1 --encoders RoPE --tasks copy --evaluate.lengths 2"
    main([str(config), "--out", str(tmp_path / "o"), *flags.split()])
    said = capsys.readouterr().err
    assert re.sub(r"least .*", "least ...", said).splitlines() == [
        "note: 'RoPE', 'DynamicNTK' has original_length=8, but training on copy goes up to 6 input positions",
        "estimate: at least ...",
        "1/1 copy, RoPE is finished",  # where no bar is shown
    ]


def test_flags_change_the_experiment(config, tmp_path):
    flags = "--train.steps 3 --seeds 7 --encoders Learned --tasks reverse --evaluate.lengths 4 1 --evaluate.examples 5"
    main([str(config), "--out", str(tmp_path / "o"), *flags.split()])
    rows = read_rows(tmp_path / "o" / "rows.jsonl")
    assert [(r["task"], r["encoder"], r["seed"], r["length"], r["count"]) for r in rows] == [
        ("reverse", "Learned", 7, 4, 5),
        ("reverse", "Learned", 7, 1, 5),
    ]


def test_tasks_and_encoders_of_one_name_are_all_kept_in_order(tmp_path):
    path = tmp_path / "c.py"
    path.write_text(
        EXPERIMENT.replace("tasks=(TASK,)", "tasks=(Copy(alphabet=64), Reverse(), Copy(alphabet=16))").replace(
            "methods=(Method(encoder=ENCODER),)",
            "methods=tuple(Method(encoder=e) for e in (rj.RoPE(), rj.NoPE(), rj.RoPE(base=500.0)))",
        )
    )
    whole = load_experiment(path)
    command = [str(path), "--out", str(tmp_path / "out")]
    assert parse(command)[1] == whole
    given = parse([*command, "--encoders", "RoPE", "--tasks", "copy"])[1]
    assert [task.alphabet for task in given.tasks] == [64, 16]
    assert [method.encoder.base for method in given.methods] == [10_000.0, 500.0]


def test_policies_and_tasks_of_methods_are_kept_together(tmp_path):
    """A method that was meant for a task that is not kept goes with it."""
    path = tmp_path / "c.py"
    path.write_text(
        EXPERIMENT.replace("tasks=(TASK,)", "tasks=(Copy(), Reverse())").replace(
            "methods=(Method(encoder=ENCODER),)",
            "methods=(Method(encoder=rj.RoPE()), Method(encoder=rj.NoPE(), policy=Grid(order='snake'), tasks=(Reverse(),)),"
            " Method(encoder=rj.NoPE(), policy=Grid(), tasks=(Copy(), Reverse())))",
        )
    )
    command = [str(path), "--out", str(tmp_path / "out")]
    whole = parse(command)[1]
    assert len(whole.cells()) == 5
    for flags, kept in (
        (["--policies", "Grid"], whole.cells()[1:2] + whole.cells()[3:]),
        (["--tasks", "copy"], whole.cells()[:2]),
        (["--tasks", "reverse", "--policies", "Contiguous"], whole.cells()[2:3]),
        (["--encoders", "NoPE", "--tasks", "reverse"], whole.cells()[3:]),
        (["--methods", "RoPE", "NoPE, Grid"], whole.cells()[:3] + whole.cells()[4:]),
    ):
        assert parse([*command, *flags])[1].cells() == kept
    with pytest.raises(
        ValueError, match="no method of the config is left by --tasks, --methods, --encoders and --policies together"
    ):
        parse([*command, "--tasks", "copy", "--encoders", "RoPE", "--policies", "Grid"])
    sizes = parse([*command, "--evaluate.lengths", "3", "4", "--evaluate.examples", "7", "5"])[1].evaluate
    assert sizes.examples_by_length == {3: 7, 4: 5}


def test_a_config_may_define_an_encoder_of_its_own(tmp_path):
    path = tmp_path / "c.py"
    own = "from dataclasses import dataclass\nfrom typing import Literal\n@dataclass(frozen=True, kw_only=True)\n"
    own += "class Mine(rj.RoPE):\n    kind: Literal['a', 'b'] = 'a'\n"
    text = experiment_with(encoder="Mine(kind='b')").replace("def ", own + "def ")
    path.write_text("from __future__ import annotations\n" + text)
    assert load_experiment(path).methods[0].encoder.kind == "b"
    path.write_text(path.read_text().replace("kind='b'", "kind='c'"))
    with pytest.raises(ValueError, match=r"c.py:12: Mine kind must be 'a' or 'b', got 'c'"):
        load_experiment(path)


def test_diverged_seeds_are_told_and_the_rest_goes_on(config, tmp_path, capsys):
    main([str(config), "--out", str(tmp_path / "o"), "--train.learning-rate", "1e38", "--encoders", "RoPE", "--tasks", "copy"])
    rows = read_rows(tmp_path / "o" / "rows.jsonl")
    assert {row["status"] for row in rows} == {"diverged"}
    assert {(row["exact_match"], row["token_accuracy"]) for row in rows} == {(None, None)}
    assert all(0 < row["diverged_at"] < 8 for row in rows)
    assert "diverged" in capsys.readouterr().out


EXPERIMENT = """\
import rope_jax as rj
from rope_jax.study import Experiment, Method, TrainConfig, EvaluateConfig, ModelConfig
from rope_jax.policies import Grid, Randomized
from rope_jax.tasks import Copy, Reverse
def experiment():
    return Experiment(name="x", tasks=(TASK,), methods=(Method(encoder=ENCODER),))
"""


def experiment_with(task="Copy()", encoder="rj.RoPE()"):
    return EXPERIMENT.replace("TASK", task).replace("ENCODER", encoder)


BAD_CONFIGS = (
    (experiment_with(encoder="rj.Rope()"), r"c.py:6: .*no attribute 'Rope' \(perhaps you meant RoPE\?\)"),
    (experiment_with(task="Reversed()"), r"c.py:6: .*name 'Reversed' is not defined \(perhaps you meant Reverse\?\)"),
    (experiment_with(encoder="rj.RoPE(bass=5.0)"), r"c.py:6: .*keyword argument 'bass' \(perhaps you meant base\?\)"),
    (
        experiment_with().replace("Copy, Rev", "Copi, Rev"),
        r"c.py:4: .*import name 'Copi'.* \(perhaps you meant Copy\?\)",
    ),
    (
        experiment_with(encoder="rj.Learned(max_length=97)"),
        r"c.py:6: Learned\(max_length=97\) .*has no row for position 97",
    ),
    (experiment_with(encoder="rj.RoPE(base='x')"), r"c.py:6: RoPE base must be a float, got 'x'"),
    (experiment_with(encoder="rj.RoPE(rotary_fraction=0.2)"), r"c.py:6: .*int\(head_dim 16 \* rotary_fraction 0.2\) = 3"),
    (experiment_with(task="Copy(unique=True)"), r"c.py:6: Copy\(unique=True, alphabet=16\) has no string of 48 different"),
    (
        experiment_with(encoder="rj.RoPE(), policy=Randomized(max_positions=50)"),
        r"c.py:6: .*keyword argument 'max_positions' \(perhaps you meant max_position\?\)",
    ),
    (experiment_with(encoder="rj.RoPE(), policy=Grod()"), r"c.py:6: .*name 'Grod' is not .* \(perhaps you meant Grid\?\)"),
    (experiment_with(encoder="rj.ALiBi(), policy=Grid()"), r"c.py:6: ALiBi\(\) does not fit Grid\(\)"),
    ("def experiment(:\n", r"c.py:1: syntax error: "),
    ("x = 1\n", r"has no function experiment\(\)"),
    ("def experiment():\n    return 3\n", r"must return an Experiment, got int: 3"),
    ("def experiment():\n\n    raise RuntimeError('boom')\n", r"c.py:3: RuntimeError: boom"),
    ("import sys\nsys.exit(0)\n", r"c.py:2: SystemExit: 0"),
    ("import nothing_of_that_name\n", r"c.py:1: ModuleNotFoundError: "),
)


def test_bad_configs(tmp_path, capsys):
    path = tmp_path / "c.py"
    for text, message in BAD_CONFIGS:
        path.write_text(text)
        refused([str(path), "--out", str(tmp_path / "out")], message, tmp_path, capsys)


BAD_FLAGS = (
    (["--train.step", "5"], r"Unrecognized options: --train.step, 5.*Perhaps you meant:.*--train.steps"),
    (["--train.steps", "0"], r"train.steps must be at least 1, got 0"),
    (["--train.steps", "many"], r"--train.steps.*'many'"),
    (["--train.min-length", "13"], r"train.min_length 13 is above train.max_length 12"),
    (["--train.length-draw", "exampel"], r"invalid choice 'exampel'.*'example', 'batch'"),
    (["--model.width", "63"], r"model.width 63 is not divisible by model.num_heads 4"),
    (["--model.width", "12"], r"int\(head_dim 3 \* rotary_fraction 1.0\) = 3"),
    (["--evaluate.lengths", "3", "0"], r"evaluate.lengths must hold lengths of at least 1 symbol, got 0"),
    (["--evaluate.lengths", "-3"], r"got -3"),
    (["--evaluate.lengths", "64"], r"Learned\(max_length=128\) has no row for position 129; raise max_length to 130"),
    (["--checkpoint-seconds", "-5"], r"checkpoint_seconds must not be negative, got -5"),
    (["--seeds", "1", "1"], r"seeds must not name anything twice"),
    (
        ["--encoders", "rope"],
        r"--encoders rope is not in the config \(perhaps you meant RoPE\?\); it has Sinusoidal, Lea",
    ),
    (["--policies", "contiguos"], r"--policies contiguos .* \(perhaps you meant Contiguous\?\); it has Contiguous"),
    (["--encoders", "RoPE", "--policies", "Grid"], r"--policies Grid is not in the config; it has Contiguous"),
    (["--evaluate.examples", "5", "6"], r"evaluate.examples has 2 numbers for 8 lengths; give one for each, or one number"),
    (["--evaluate.examples", "0"], r"evaluate.examples must be at least 1, got 0"),
    (["--evaluate.examples", "few"], r"--evaluate.examples.*few"),
    (
        ["--methods", "rope"],
        r"--methods rope is not in the config \(perhaps you meant RoPE\?\); it has Sinusoidal, Learned\(max",
    ),
    (["--metrics"], r"--metrics must name at least one metric, such as exact_match"),
    (["--tasks", "cpoy"], r"--tasks cpoy is not in the config \(perhaps you meant copy\?\); it has copy, reverse"),
)


def test_bad_flags(tmp_path, capsys):
    for flags, message in BAD_FLAGS:
        refused([QUICKSTART, "--out", str(tmp_path / "out"), *flags], message, tmp_path, capsys)


def test_bad_places(run, tmp_path, capsys):
    out, command = run
    before = contents(out)
    for arguments, message in (
        (
            [*command, "--train.steps", "9"],
            r"error: --out: The folder .* holds a different experiment: train.steps is 8 there and 9 here\. Give another folder",
        ),
        ([command[0], "--out", str(out / "table.md")], r"error: --out: .*table.md is a file; give a folder"),
        ([command[0], "--out", str(out / "cells")], r"error: --out: .* holds other files and no run.json"),
        ([command[0], "--out", str(out / "table.md" / "x")], r"cannot be written"),
        ([command[0]], r"--out"),
        (["--out", str(out)], r"CONFIG first"),
        ([], r"CONFIG first"),
        ([str(tmp_path / "toyy.py"), "--out", str(out)], r"toyy.py does not exist"),
        ([str(tmp_path), "--out", str(out)], r"is a folder; name a file in it"),
        ([str(tmp_path / ("x" * 300)), "--out", str(out)], r"cannot be read \(File name too long\)"),
    ):
        refused(arguments, message, tmp_path, capsys)
    assert contents(out) == before


def refused(arguments, message, folder, capsys):
    """Exit 2, one message on stderr, no traceback, nothing written."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    said = " ".join(printed.err.replace("│", " ").split())
    assert ended.value.code == 2
    assert printed.out == ""
    assert "Traceback" not in said
    assert re.search(message, said), said
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)] == before


def test_a_real_sigint_between_two_cells(config, finished, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "experiments.compare", str(config), "--out", str(out)]
    long = [*command, "--encoders", "RoPE"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where interrupts are ignored, the process would inherit it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(long, cwd=ROOT, env=environment, **pipes)
    signal.signal(signal.SIGINT, before)
    try:
        while process.poll() is None and not list(out.glob("cells/copy-*/rows.jsonl")):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted with 1 of 2 cells to do; the same command continues with them in" in err
    [first] = out.glob("cells/copy-*/rows.jsonl")
    assert not list(out.glob("cells/reverse-*/rows.jsonl"))
    assert not (out / "table.md").exists()
    written = first.read_bytes(), first.stat().st_mtime_ns
    again = subprocess.run(long, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert (first.read_bytes(), first.stat().st_mtime_ns) == written
    assert again.stderr.splitlines()[1:] == ["1/1 reverse, RoPE is finished"]  # not a terminal: no progress bar
    assert read_rows(out / "rows.jsonl") == [row for row in read_rows(finished / "rows.jsonl") if row["encoder"] == "RoPE"]
    assert re.search(r"^reverse\(alphabet=4\)  RoPE, as-trained ", again.stdout, re.MULTILINE)


def test_what_the_machine_cannot_run_is_refused_unless_forced(config, tmp_path, capsys, ran, monkeypatch):
    """The sizes of real reports: hard limits of int32 hold in any case, those of the machine without --force."""
    out = ["--out", str(tmp_path / "out")]
    for flags, message in (
        (["--model.width", "200000"], r"needs at least .* TB of memory.* --force to try it"),
        (["--evaluate.examples", "2000000000"], r"needs at least .* of memory"),
        (["--train.steps", str(10**30)], r"TrainConfig steps must be within the range of int32, .* got 1000000"),
        (["--train.batch-size", str(10**12), "--force"], r"TrainConfig batch_size must be within the range of int32"),
        (["--evaluate.lengths", "2000000000", "--encoders", "RoPE", "--force"], r"input positions of copy must be at most"),
    ):
        refused([str(config), *out, *flags], message, tmp_path, capsys)
    monkeypatch.setattr("rope_jax.study.machine.memory_bytes", lambda: 1000)
    command = [str(config), *out, "--encoders", "RoPE", "--tasks", "copy"]
    refused(command, r"needs at least .* kB of memory, and there are 1 kB", tmp_path, capsys)
    assert ran == []
    main([*command, "--force"])
    assert len(ran) == 1


BROKEN_METRIC = """
from dataclasses import dataclass, replace
from rope_jax.tasks.metrics import Metric
@dataclass(frozen=True, kw_only=True)
class Broken(Metric):
    def measure(self, logits, batch):
        MEASURE
def experiment(toy=experiment):
    return replace(toy(), evaluate=replace(toy().evaluate, metrics=(Broken(),)))
"""


def test_a_fault_that_only_evaluation_shows_comes_before_training(config, tmp_path, capsys, ran):
    """What this package refuses is a message; a fault of the user's class keeps its traceback. Nothing is written."""
    path, out = tmp_path / "broken.py", tmp_path / "out"

    def write(measure):
        path.write_text(config.read_text() + BROKEN_METRIC.replace("MEASURE", measure))

    for measure, message in (
        ("return batch.answer_mask, batch.answer_mask", r"error: Broken.measure must return a tuple of two scalars"),
        ("return logits.sum() * 1j, 1", r"error: Broken.measure must return real numbers"),
    ):
        write(measure)
        refused([str(path), "--out", str(out)], message, tmp_path, capsys)
    for measure, fault in (
        ("raise ValueError('mine')", ValueError),
        ("return logits @ logits, 1", (TypeError, ValueError)),
        ("return 1 / 0", ZeroDivisionError),
    ):
        write(measure)
        with pytest.raises(fault):
            main([str(path), "--out", str(out)])
        assert not out.exists()
    assert ran == []


def test_a_full_disk_is_one_message_and_the_same_command_goes_on(config, finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    command = [str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy"]
    before = os.replace

    def fail(source, target):
        if Path(target).name == stopped_at:
            raise OSError(28, "No space left on device")
        before(source, target)

    for stopped_at, left in (("run.json", 1), ("config.json", 1), ("rows.jsonl", 1), ("table.md", 0)):
        monkeypatch.setattr("os.replace", fail)
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert re.fullmatch(rf"error: .*/{stopped_at}: No space left on device, with {left} of 1 cells to do; the same .*", said)
        monkeypatch.setattr("os.replace", before)
    main(command)
    rows = [row for row in read_rows(finished / "rows.jsonl") if (row["task"], row["encoder"]) == ("copy", "RoPE")]
    assert read_rows(out / "rows.jsonl") == rows
