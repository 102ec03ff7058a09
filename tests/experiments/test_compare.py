"""`python -m experiments.compare` as a user runs it: outputs, second runs, bad input, Ctrl-C."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from experiments.arguments import parse
from experiments.cli import load_experiment
from experiments.compare import main
from rope_jax.study.files import read_rows
from rope_jax.study.rows import completed
from rope_jax.study.store import TrainingFolder
from rope_jax.study.work import Worker
from rope_jax.training import evaluate, train

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "configs" / "quickstart.py")
FIGURES = [f"{name}_by_length.{kind}" for name in ("accuracy", "token_accuracy") for kind in ("png", "svg")]
REPORT = ["rows.jsonl", "table.md", "table.tex", *FIGURES]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config file of the toy experiment: two tasks, two encoders, two variants."""
    path = tmp_path_factory.mktemp("configs") / "toy.py"
    path.write_text(f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\nfrom toy_study import toy_experiment as experiment\n")
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of a finished run; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("run") / "out"
    main([str(config), "--out", str(out)])
    return out


@pytest.fixture
def run(config, finished, tmp_path):
    """A copy of the finished run, and the command that made it."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    return out, [str(config), "--out", str(out)]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def ran(monkeypatch):
    """The folders of the trainings that are worked on."""
    names = []
    run_group = Worker._run

    def noted(worker, group):
        names.extend(worker.store.training(one.planned.cell, one.seed).path.name for one in group)
        run_group(worker, group)

    monkeypatch.setattr(Worker, "_run", noted)
    return names


def names_of(toy, *numbers):
    """The folders of the trainings of some cells."""
    return [cell.training_name(seed) for cell in (toy.cells()[i] for i in numbers) for seed in cell.seeds]


def test_programs_of_one_cell_are_let_go_before_the_next(run, ran, monkeypatch):
    """So that a run of any number of cells stays within the memory maps that a process may have."""
    out, command = run
    for folder in (out / "trainings").glob("*-rope-*"):
        shutil.rmtree(folder)
    sizes = []
    start = TrainingFolder.start
    monkeypatch.setattr(TrainingFolder, "start", lambda *a: (sizes.append(train.train_chunk._cache_size()), start(*a)))
    main(command)
    assert len(ran) == 4
    assert sizes == [0, 0, 0, 0]


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
    assert {path.name for path in finished.iterdir()} == {"study.json", "sessions", "trainings", *REPORT}
    rows = read_rows(finished / "rows.jsonl")
    # (one variant of Learned, three of RoPE) x 2 tasks x 2 seeds x 3 lengths
    assert len(rows) == (1 + 3) * 2 * 2 * 3
    metrics = {"exact_match": float, "token_accuracy": float, "content_error": float, "end_error": float}
    text, nothing = str, type(None)
    columns = {
        "task": text, "task_options": text, "method": text, "encoder": text, "encoder_options": text, "policy": text,
        "policy_options": text, "variant": text, "variant_encoder": (text, nothing), "variant_policy": nothing,
        "privileged": list, "settings": text, "trial": nothing, "training": text, "measurement": text, "commit": (text, nothing),
        "jax": text, "device": text, "together": nothing, "seed": int, "train_steps": int, "train_length": int,
        "length": int, "status": text, "digest": text, "distinct": float, "seen": float, "count": int, **metrics,
    }  # fmt: skip
    names = {cell.training(seed): cell.training_name(seed) for cell in toy.cells() for seed in cell.seeds}
    for row in rows:
        assert list(row) == list(columns)
        for name, kind in columns.items():
            assert isinstance(row[name], kind), name
        assert row["count"] == 16
        assert 0 <= row["exact_match"] <= row["token_accuracy"] <= 1
        assert names[row["training"]].endswith(row["training"])
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
    [session] = (finished / "sessions").iterdir()
    record, *work = read_rows(session)
    assert record["command"].startswith("python -m experiments.compare ")
    assert record["devices"] == ["cpu:0 (cpu)", "cpu:1 (cpu)"]
    assert record["experiment"]["train"]["steps"] == 8
    assert [piece["training"] for piece in work] == list(names.values())
    for piece in work:
        assert piece["training_seconds"] > 0
        assert piece["evaluation_seconds"] > 0
        assert piece["peak_bytes"] > 1e6
        folder = finished / "trainings" / piece["training"]
        [of_rows] = folder.glob("rows-*.jsonl")
        assert {path.name for path in folder.iterdir()} == {"training.json", "log.jsonl", "checkpoint", "lock", of_rows.name}
        assert read_rows(folder / "log.jsonl")[-1]["step"] == 8
        assert json.loads((folder / "training.json").read_text())["task"]["type"].lower() == piece["training"].split("-")[0]


def test_a_second_run_does_nothing_and_says_the_same(run, ran, capsys):
    out, command = run
    before = contents(out)
    main(command)
    assert ran == []
    assert contents(out) == before
    printed = capsys.readouterr()
    assert printed.out.startswith("exact match by length, mean over seeds\n\ntask ")
    assert printed.out.endswith(f"{out}: 0 of 8 trainings were run now; table.md there has the full tables\n")
    assert printed.err == ""  # nor an estimate


def test_what_is_deleted_is_rebuilt_without_training(run, ran):
    out, command = run
    before = contents(out)
    for lost in REPORT:
        (out / lost).unlink()
    main(command)
    shutil.rmtree(out / "trainings")  # the rows of the run are enough
    main(command)
    assert ran == []
    assert contents(out) == {name: content for name, content in before.items() if not name.startswith("trainings/")}


def test_one_deleted_training_is_run_again_alone_and_alike(run, ran, toy):
    out, command = run
    before = contents(out)
    [name] = names_of(toy, 1)[1:]
    shutil.rmtree(out / "trainings" / name)
    main(command)
    assert ran == [name]
    after = contents(out)
    for same in (*REPORT, *(path for path in before if "/rows-" in path)):
        assert after[same] == before[same]
    assert sorted(len(read_rows(session)) for session in (out / "sessions").iterdir()) == [2, 9]


@pytest.mark.slow
def test_a_study_grows_by_flags_and_trains_only_what_is_new(run, ran, toy, tmp_path, capsys):
    """Another seed and another length; the rows are those of a study that was run at once."""
    out, command = run
    more = ["--seeds", "0", "1", "2", "--evaluate.lengths", "2", "3", "5", "4"]
    logs = {path: path.stat().st_mtime_ns for path in out.glob("trainings/*/log.jsonl")}
    main([*command, *more])
    assert {path: path.stat().st_mtime_ns for path in logs} == logs  # what was trained is not trained again
    assert {name for name in ran if "seed2" in name} == set(names_of(replace(toy, seeds=(2,)), 0, 1, 2, 3))
    grown = (out / "rows.jsonl").read_bytes()
    assert "12 of 12 trainings were run now" in capsys.readouterr().out  # of eight, a length
    ran.clear()
    main([command[0], "--out", str(tmp_path / "once"), *more])
    assert (tmp_path / "once" / "rows.jsonl").read_bytes() == grown
    ran.clear()
    main(command)
    assert ran == []
    assert len(read_rows(out / "rows.jsonl")) == 48


@pytest.mark.slow
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
        completed(row, method="rotary") if row["method"] == "RoPE" else row
        for row in map(json.loads, before["rows.jsonl"].splitlines())
    ]
    assert read_rows(out / "rows.jsonl") == renamed
    assert "| rotary " in (out / "table.md").read_text()
    newer.write_text(newer.read_text().replace("return RoPE(", "return RoPE(added=4, "))
    main([str(newer), *command[1:]])
    assert len(ran) == 4  # another encoder, beside the first one


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


def test_a_training_without_rows_is_evaluated_without_training(run, toy, monkeypatch):
    out, command = run
    before = contents(out)
    for path in (out / "trainings" / names_of(toy, 0)[0]).glob("rows-*"):
        path.unlink()
    (out / "rows.jsonl").unlink()

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("rope_jax.training.train.train_chunk", refuse)
    main(command)
    assert contents(out)["rows.jsonl"] == before["rows.jsonl"]


def test_an_interrupted_training_goes_on_from_its_checkpoint_to_the_same_rows(config, finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = [str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy", "--checkpoint-seconds", "0"]
    monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda speed, left: 4)
    log = TrainingFolder.log

    def stop(folder, entry):
        log(folder, entry)
        if entry["step"] == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingFolder, "log", stop)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 130
    monkeypatch.setattr(TrainingFolder, "log", log)
    for folder in (out / "trainings").iterdir():
        assert [path.name for path in (folder / "checkpoint").iterdir()] == ["4"]
    main(command)
    for folder in (out / "trainings").iterdir():
        assert [entry["step"] for entry in read_rows(folder / "log.jsonl")] == [4, 8]
    rows = [row for row in read_rows(finished / "rows.jsonl") if (row["task"], row["encoder"]) == ("copy", "RoPE")]
    assert read_rows(out / "rows.jsonl") == rows


def test_an_interrupt_that_is_swallowed_is_heard_at_the_next_step(config, tmp_path, monkeypatch, capsys):
    """As one that comes while JAX runs a callback, which drops what is raised in it, or that JAX raises as something else."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = TrainingFolder.start
    for wrapped in (False, True):
        out = tmp_path / str(wrapped)

        def swallow(folder, cell, seed, step, wrapped=wrapped):
            start(folder, cell, seed, step)
            if seed:
                return
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                if wrapped:
                    raise ValueError("something else") from error

        monkeypatch.setattr(TrainingFolder, "start", swallow)
        with pytest.raises(SystemExit) as ended:
            main([str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy"])
        assert ended.value.code == 130
        assert "interrupted with 2 of 2 trainings to do" in capsys.readouterr().err
        assert not list(out.rglob("failed.json"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_damaged_checkpoint_is_named_with_the_remedy_and_the_rest_goes_on(run, toy, ran, capsys):
    out, command = run
    damaged, other = names_of(toy, 0)[0], names_of(toy, 1)[0]
    for name in (damaged, other):
        for path in (out / "trainings" / name).glob("rows-*"):
            path.unlink()
    [metadata] = (out / "trainings" / damaged / "checkpoint").rglob("_METADATA")
    metadata.write_text("{")
    with pytest.raises(SystemExit) as ended:
        main(command)
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert re.search(r"copy, Learned.*, seed 0 is skipped: checkpoint .*checkpoint/8 .*; delete it to train", said)
    assert list((out / "trainings" / other).glob("rows-*"))
    shutil.rmtree(metadata.parent.parent)
    main(command)
    assert ran[-1] == damaged


def test_a_stale_original_length_is_pointed_out(config, tmp_path, capsys):
    flags = "--train.max-length 2 --train.steps 1 --encoders RoPE --tasks copy --evaluate.lengths 2"
    main([str(config), "--out", str(tmp_path / "o"), *flags.split()])
    said = capsys.readouterr().err
    assert re.sub(r"least .*", "least ...", said).splitlines() == [
        "note: 'RoPE', 'DynamicNTK' has original_length=8, but training on copy goes up to 6 input positions",
        "estimate: at least ...",
        "copy, RoPE, seeds 0, 1: finished",  # where no bar is shown
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
    flags = ["--train.learning-rate", "1e38", "--encoders", "RoPE", "--tasks", "copy"]
    with pytest.raises(SystemExit) as ended:
        main([str(config), "--out", str(tmp_path / "o"), *flags])
    assert ended.value.code == 1
    rows = read_rows(tmp_path / "o" / "rows.jsonl")
    assert {row["status"] for row in rows} == {"diverged"}
    assert {(row["exact_match"], row["token_accuracy"]) for row in rows} == {(None, None)}
    assert all(0 < row["diverged_at"] < 8 for row in rows)
    printed = capsys.readouterr()
    assert "diverged" in printed.out
    assert "diverged: copy, RoPE, seed 0" in printed.err


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
    (out / "trainings" / "notes").write_text("mine")
    for arguments, message in (
        ([command[0], "--out", str(out / "table.md")], r"error: --out: .*table.md is a file; give a folder"),
        ([command[0], "--out", str(out / "trainings")], r"error: --out: .* holds other files and no study.json"),
        ([command[0], "--out", str(out / "table.md" / "x")], r"cannot be written"),
        ([*command, "--reuse", str(out / "nowhere")], r"error: --reuse: .*nowhere is not a folder"),
        ([command[0]], r"--out"),
        (["--out", str(out)], r"CONFIG first"),
        ([], r"CONFIG first"),
        ([str(tmp_path / "toyy.py"), "--out", str(out)], r"toyy.py does not exist"),
        ([str(tmp_path), "--out", str(out)], r"is a folder; name a file in it"),
        ([str(tmp_path / ("x" * 300)), "--out", str(out)], r"cannot be read \(File name too long\)"),
    ):
        refused(arguments, message, tmp_path, capsys)
    (out / "trainings" / "notes").unlink()
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
        while process.poll() is None and len(list(out.glob("trainings/copy-*/rows-*.jsonl"))) < 2:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted with 2 of 4 trainings to do; the same command continues with them in" in err
    first, _ = out.glob("trainings/copy-*/rows-*.jsonl")
    assert not list(out.glob("trainings/reverse-*/rows-*.jsonl"))
    assert not (out / "table.md").exists()
    written = first.read_bytes(), first.stat().st_mtime_ns
    again = subprocess.run(long, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert (first.read_bytes(), first.stat().st_mtime_ns) == written
    assert again.stderr.splitlines()[1:] == ["reverse, RoPE, seeds 0, 1: finished"]  # not a terminal: no progress bar
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
    assert len(ran) == 2


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
    assert not out.exists()
    assert ran == []
    for measure, fault in (
        ("raise ValueError('mine')", "ValueError: mine"),
        ("return logits @ logits, 1", "Error: "),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
    ):
        write(measure)
        shutil.rmtree(out, ignore_errors=True)
        with pytest.raises(SystemExit) as ended:
            main([str(path), "--out", str(out), "--tasks", "copy"])
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert re.search(rf"failed: copy.*, RoPE, seed 1: \w*{fault}", said), said
        assert {row["status"] for row in read_rows(out / "rows.jsonl")} == {"failed"}
        for record in out.rglob("failed.json"):
            assert "broken.py" in json.loads(record.read_text())["traceback"]
        assert "| failed " in (out / "table.md").read_text()
    write("return batch.answer_mask.sum(), 1")
    with pytest.raises(SystemExit):
        main([str(path), "--out", str(out), "--tasks", "copy"])
    main([str(path), "--out", str(out), "--tasks", "copy", "--retry-failed"])
    assert {row["status"] for row in read_rows(out / "rows.jsonl")} == {"ok"}


def test_one_training_that_fails_stops_no_other(config, tmp_path, capsys, monkeypatch):
    """A crash, and too little memory: both are recorded with their reasons, and the table leaves them out."""
    evaluate_cell = evaluate.evaluate

    def failing(cell, *rest, **options):
        if cell.task.name == "copy":
            learned = cell.method.label.startswith("Learned")
            raise RuntimeError("RESOURCE_EXHAUSTED: 3 GB" if learned else "boom") if 0 in cell.seeds else KeyError("seed 1")
        return evaluate_cell(cell, *rest, **options)

    monkeypatch.setattr("rope_jax.study.work.evaluate", failing)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main([str(config), "--out", str(out)])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "failed: copy, Learned(max_length=32), seed 0: not enough memory: RuntimeError: RESOURCE_EXHAUSTED: 3 GB" in said
    assert "failed: copy, Learned(max_length=32), seed 1: KeyError: 'seed 1'" in said  # tried again alone
    assert "failed: copy, RoPE, seed 1: RuntimeError: boom" in said
    assert {(row["task"], row["status"]) for row in read_rows(out / "rows.jsonl")} == {("copy", "failed"), ("reverse", "ok")}


def test_a_full_disk_is_one_message_and_the_same_command_goes_on(config, finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    command = [str(config), "--out", str(out), "--encoders", "RoPE", "--tasks", "copy"]
    before = os.replace

    def fail(source, target):
        if Path(target).name.startswith(stopped_at):
            raise OSError(28, "No space left on device")
        before(source, target)

    for stopped_at, left in (("study.json", 2), ("training.json", 2), ("rows-", 2), ("rows.jsonl", 0), ("table.md", 0)):
        monkeypatch.setattr("os.replace", fail)
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert re.fullmatch(
            rf"error: .*/{stopped_at}.*: No space left on device, with {left} of 2 trainings to do; the same .*", said
        )
        monkeypatch.setattr("os.replace", before)
    main(command)
    rows = [row for row in read_rows(finished / "rows.jsonl") if (row["task"], row["encoder"]) == ("copy", "RoPE")]
    assert read_rows(out / "rows.jsonl") == rows
