"""Random command lines: none ends in a traceback, each has the right exit status, and a refused one writes nothing."""

import errno
import random
import re
import sys
from pathlib import Path

import pytest

import benchmarks.__main__
import experiments.compare
from benchmarks import BENCHMARKS
from experiments import blocks, catalogue
from rope_jax.study.store import read_rows
from rope_jax.training.evaluate import check_evaluation

SEED, LINES, VALID = 20_12, 1500, 8  # VALID lines are run to the end

CONFIG = """\
import rope_jax as rj
from rope_jax.policies import Randomized
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy, Reverse
VARIANTS = (Variant(name='NTK 2', encoder=rj.RoPE(scaling=rj.NTK(factor=2.0))),)
def experiment():
    return Experiment(
        name='fuzz',
        tasks=(Copy(alphabet=4), Reverse(alphabet=4)),
        methods=(
            Method(name='first', encoder=rj.RoPE(), variants=VARIANTS),
            Method(encoder=rj.NoPE(), policy=Randomized(max_position=40)),
        ),
        model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=4, batch_size=4, max_length=3),
        evaluate=EvaluateConfig(lengths=(2, 3, 5), examples=8),
        seeds=(0, 1),
    )
"""
IN_CONFIG = re.compile(r"(?<=[=(])(?:[\d.]+|'[^']*'|\([\d, ]+\))")  # the values that are replaced
PYTHON = (
    "''", "' '", "'\\n'", "'\\ud800'", "'$\\\\foo$'", "'\\x00'", "'中文'", "'x' * 1000", "None", "True", "0", "-1", "1", "3",
    "2**31", "10**30", "-(10**30)", "10**5000", "1.5", "float('nan')", "float('inf')", "()", "(1,)", "(1, 1)", "[1]", "{}",
    "b'x'",
    "object()", "print", "lambda: 1", "1/0", "undefined", "(",
)  # fmt: skip
TEXTS = (
    b"", b"\xff\xfe", CONFIG.encode("utf-16"), CONFIG.encode("utf-32"), CONFIG.encode("utf-8-sig"),
    b"# \xff\n" + CONFIG.encode(), b"# coding: nonsense\n" + CONFIG.encode(), b"\x00" * 100,
    b"def experiment():\n    return experiment()\n", b"def experiment():\n    raise BaseException('x')\n",
    b"experiment = 3\n", b"import os\nos.exit(3)\n", b"raise SystemExit(0)\n",
    b"class E(Exception):\n    def __str__(self): return 1/0\nraise E\n", b"\x89PNG\r\n",
    b"experiment = lambda: (_ for _ in ())\n",
)  # fmt: skip
FITTING = ("1", "2", "4", "0.5", "copy", "RoPE", "first", "float32", "batch", "exact_match")
VALUES = (
    *FITTING * 2,
    "", " ", "-1", "0", "1", "3", "1.5", "1e30", "9" * 5000, str(10**30), str(2**31), str(2**31 - 1), "200000", "nan",
    "inf", "-inf", "True", "None", "many", "ü", "中文", "💥", "\ud800", "\udcff", "a\0b", "\n", "$\\foo$", "--", "-", "---x",
    "a b", "[1]", "(1,)", "=", "*", "../..",
)  # fmt: skip
FLAGS = (
    "--tasks", "--methods", "--encoders", "--policies", "--seeds", "--metrics", "--checkpoint-seconds",
    "--no-compilation-cache", "--force", "--model.num-layers", "--model.width", "--model.num-heads", "--model.mlp-factor",
    "--model.compute-dtype", "--train.steps", "--train.batch-size", "--train.min-length", "--train.max-length",
    "--train.length-draw", "--train.learning-rate", "--train.dropout", "--train.clip-norm", "--evaluate.lengths",
    "--evaluate.examples", "--train.step", "--trian.steps", "--nonsense", "-x", "--out", "",
)  # fmt: skip
OUTS = (
    "", " ", "file", "file/below", "other", "/dev/null", "/dev/null/x", "/dev/full", "/proc/none/x", "x" * 300, "a/" * 3000,
    "a\0b", "new/deep", "\udcff", "ü", "--help", ".", "..", "run",
)  # fmt: skip
TINY = (
    ["--train.steps", "2"], ["--seeds", "5"], ["--tasks", "copy"], ["--encoders", "RoPE"], ["--methods", "first"],
    ["--evaluate.lengths", "2", "4"], ["--train.dropout", "0.5"], ["--metrics", "end_error"], ["--evaluate.examples", "3"],
    ["--checkpoint-seconds", "0"], ["--force"],
)  # fmt: skip


def line(rng: random.Random, folder: Path) -> list[str]:
    """A command line of compare, most often malformed, in a folder with the files that it may name."""
    config = folder / "fuzz.py"
    kind = rng.random()
    if kind < 0.25:  # a config with a value that does not fit
        text = CONFIG
        for _ in range(rng.choice((1, 1, 2))):
            replaced = rng.choice(list(IN_CONFIG.finditer(text)))
            text = text[: replaced.start()] + rng.choice(PYTHON) + text[replaced.end() :]
        config.write_text(text, encoding="utf-8")
    elif kind < 0.33:
        config.write_bytes(rng.choice(TEXTS))
    else:
        config.write_text(CONFIG, encoding="utf-8")
    arguments = [str(config), "--out", "out"]
    if 0.33 < kind < 0.45:
        arguments[2] = rng.choice(OUTS)
    elif kind < 0.5:
        arguments[0] = rng.choice((*VALUES, *OUTS, str(folder), "fuzz.pi"))
    for _ in range(0 if kind < 0.45 and rng.random() < 0.7 else rng.choice((1, 1, 2, 3))):
        given = [rng.choice(FLAGS), *rng.choices(VALUES, k=rng.choice((0, 1, 1, 1, 2)))]
        arguments += ["=".join(given)] if rng.random() < 0.1 else given
    if rng.random() < 0.1:
        rng.shuffle(arguments)
    if rng.random() < 0.1:
        del arguments[rng.randrange(len(arguments))]
    return arguments


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in str(path)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a command, with a file and a folder of other files in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    return tmp_path


def status_of(main, arguments):
    """The exit status of a command; any exception but SystemExit would be a traceback."""
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code or 0
    except BaseException as error:
        raise AssertionError(f"{arguments!r} ends in a traceback") from error
    return 0


def check(main, arguments, folder, capsys, allowed):
    """Runs one line; returns its status."""
    before = files(folder)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # as `command.run` does
    status = status_of(main, arguments)
    printed = capsys.readouterr()
    assert status in allowed, (arguments, status, printed.err)
    assert "Traceback" not in printed.err, arguments
    if status:
        assert printed.err.strip(), arguments  # it says why
    if status == 2:
        assert printed.out == "", arguments
        assert files(folder) == before, arguments
    return status


@pytest.mark.slow
def test_random_command_lines_of_compare(folder, capsys, monkeypatch):
    """Those that are accepted stop where training would begin: done, at a full disk, or at Ctrl-C."""
    ends = {0: SystemExit(0), 1: OSError(errno.ENOSPC, "No space left on device", "out/rows.jsonl"), 130: KeyboardInterrupt()}
    rng = random.Random(SEED)
    statuses = []

    def work(folder, cells, *_):
        for cell in cells:
            check_evaluation(cell)
        raise ends[end]

    monkeypatch.setattr(experiments.compare, "run_cells", work)
    for _ in range(LINES):
        end = rng.choice(tuple(ends))
        statuses.append(check(experiments.compare.main, line(rng, folder), folder, capsys, {0, 2, end}))
        assert not (folder / "out").exists()
    assert statuses.count(2) > LINES / 2  # the lines are as bad as they should be
    assert min(map(statuses.count, ends)) >= 5


@pytest.mark.slow
def test_random_valid_command_lines_of_compare(folder, capsys):
    rng = random.Random(SEED)
    (folder / "fuzz.py").write_text(CONFIG)
    for number in range(VALID):
        flags = [text for flag in rng.sample(TINY, 3) for text in flag]
        assert check(experiments.compare.main, ["fuzz.py", *flags, "--out", f"out/{number}"], folder, capsys, {0}) == 0
        assert read_rows(folder / "out" / str(number) / "rows.jsonl")
        assert check(experiments.compare.main, ["fuzz.py", "--out", f"out/{number}", "--seeds", "77"], folder, capsys, {2}) == 2


@pytest.mark.slow
def test_random_command_lines_of_the_other_commands(folder, capsys, monkeypatch):
    rng = random.Random(SEED)
    for benchmark in BENCHMARKS.values():
        monkeypatch.setattr(benchmark, "run", lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    monkeypatch.setattr(catalogue, "PAGE", folder / "page.md")
    words = (*BENCHMARKS, *VALUES, *OUTS, "--out", "--rounds", "--batch", "--length", "fuzz.py", "file", "--help")
    for main in (benchmarks.__main__.main, catalogue.main):
        for _ in range(60):
            (folder / "fuzz.py").write_bytes(rng.choice(TEXTS))
            arguments = [
                rng.choice(tuple(BENCHMARKS)) if main is benchmarks.__main__.main else "fuzz.py",
                *rng.choices(words, k=rng.randint(0, 3)),
            ]
            check(main, arguments, folder, capsys, {0, 1, 2})
    for value in (*VALUES, *FLAGS):
        assert check(blocks.main, [value], folder, capsys, {2}) == 2
