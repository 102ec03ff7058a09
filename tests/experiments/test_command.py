"""Where output goes: pipes, full disks, closed streams, encodings and devices; one message, the right status, nothing lost."""

import itertools
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from jax.errors import JaxRuntimeError

from experiments import command, threads
from experiments.cli import load_experiment
from rope_jax.study.rows import completed, row
from rope_jax.study.store import open_store

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The command of a run that is finished, with rows made up: its report has a dagger, and it needs no device."""
    out = tmp_path_factory.mktemp("run") / "out"
    store = open_store(out)
    store.begin()
    for cell in load_experiment(QUICKSTART).cells():
        measured = {metric.name: (1, 2) for metric in cell.task.metrics}
        for seed in cell.seeds:
            places = itertools.product(cell.method.all_variants, cell.evaluate.lengths)
            rows = [
                row(cell, variant, seed=seed, length=n, examples=512, distinct=1.0, measured=measured, diverged_at=-1)
                for variant, n in places
            ]
            store.training(cell, seed).finish([completed(each) for each in rows])
    return f"{sys.executable} -m experiments.compare {QUICKSTART} --out {out}"


def shell(line, **environment):
    """Status, stdout and stderr of a line of the shell; the status is that of its first command."""
    line = f"set -o pipefail; {line}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_streams_that_cannot_be_written(finished):
    full = "standard output cannot be written \\(No space left on device\\)"
    out = finished.split()[-1]
    for line, status, stdout, stderr in (
        (f"{finished} | true", 141, "", ""),
        (f"{finished} > /dev/full", 1, "", f"error: {full}; all files are in {out}\n"),
        (f"{finished} >&-", 0, "", ""),
        (f"{finished} --help > /dev/full", 1, "", r"error: .*No space left on device\)?\n"),
        (f"{finished} --nonsense 2> /dev/full", 2, "", ""),
        (f"{finished} --nonsense 2>&-", 2, "", ""),
        (f"{finished} --nonsense 2>&1 | true", 2, "", ""),
    ):
        done = shell(line)
        assert done[:2] == (status, stdout), (line, done)
        assert re.fullmatch(stderr, done[2]), (line, done)
    assert (Path(out) / "table.md").exists()


def test_a_locale_that_cannot_write_a_mark_writes_its_code(finished):
    status, stdout, stderr = shell(finished, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (status, stderr) == (0, "")
    assert r"\u2020 uses the length" in stdout


def test_devices_that_are_missing_are_named_before_anything_is_written(finished, tmp_path):
    """Where there is something to run; a finished run needs none."""
    out = finished.split()[-1]
    new = finished.replace(out, str(tmp_path / "deep" / "new"))
    for platform in ("cuda",):
        status, stdout, stderr = shell(new, JAX_PLATFORMS=platform)
        assert (status, stdout) == (2, "")
        assert re.fullmatch(rf"error: JAX finds no devices for JAX_PLATFORMS={platform} \(.*\); set it to .*\n", stderr)
    assert list(tmp_path.iterdir()) == []
    assert shell(finished, JAX_PLATFORMS="cuda")[0] == 0


def test_texts_that_name_no_path_are_refused():
    for text in ("", " ", "a\0b", "\ud800"):
        with pytest.raises(ValueError, match=r"a path must be text that is not blank, got '.*'; name a file or folder"):
            command.path(text)
    assert command.path("a b") == Path("a b")


def test_errors_of_files_memory_and_threads_are_one_message(capsys):
    """Others pass, with their traceback."""

    def fails_with(error):
        with command.failing(lambda: "; no file is written"):
            raise error

    for error, message in (
        (OSError(28, "No space left on device", "out/x"), "out/x: No space left on device"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (
            BlockingIOError(11, "Resource temporarily unavailable"),
            "Resource temporarily unavailable; is the limit of processes (`ulimit -u`) reached?",
        ),
        (RuntimeError("can't start new thread"), threads.FULL),
        (MemoryError(), "there is not enough memory (MemoryError); use smaller sizes"),
        (
            JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB\nmore"),
            "there is not enough memory (RESOURCE_EXHAUSTED: 9 GB); use smaller sizes",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            fails_with(error)
        assert ended.value.code == 1
        assert capsys.readouterr().err == f"error: {message}; no file is written\n"
    for error in (ValueError("x"), BrokenPipeError(), ZeroDivisionError(), RuntimeError("RESOURCE_EXHAUSTED"), RuntimeError()):
        with pytest.raises(type(error)):
            fails_with(error)


def test_errors_that_are_known_otherwise_are_not_shown_twice(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    command._drop_echoes()
    others = [RuntimeError("another"), ValueError("Event loop is closed")]
    for error in (KeyboardInterrupt(), RuntimeError("Event loop is closed"), *others):
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))
    assert [what.exc_value for what in shown] == others


def test_a_command_that_may_start_no_threads_says_so_before_it_imports_more():
    """XLA would abort the process. As root, no limit of processes holds; a limit of memory refuses threads as well."""
    threads.require_threads()  # here they can be started
    gigabyte = 2**20  # in the unit of ulimit; -s is the memory of every thread
    done = shell(f"ulimit -s {gigabyte} && ulimit -v {8 * gigabyte} && {sys.executable} -m experiments.compare")
    assert done == (1, "", f"error: {threads.FULL}\n")


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_the_same_command_goes_on(tmp_path):
    """A limit of the size of files stands for the disk."""
    names = ("estimate: ", "error: ")
    command = f"{sys.executable} -m experiments.compare configs/smoke.py --out {tmp_path / 'out'} --tasks copy --encoders RoPE"
    for kilobytes in (0, 4, 8, 16):
        status, stdout, stderr = shell(f"ulimit -f {kilobytes}; {command}", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"))
        lines = stderr.splitlines()
        assert (status, stdout, len(lines)) == (1, "", 2), stderr
        assert all(line.startswith(name) for line, name in zip(lines, names, strict=True))
        assert re.search(r"File too large.*, with 2 of 2 trainings to do; the same command continues", lines[1])
    status, _, stderr = shell(command)
    assert (status, stderr.splitlines()[1:]) == (0, ["copy, RoPE, seeds 0, 1: finished"])
