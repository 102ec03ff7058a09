"""Machines that refuse: a full disk, a read-only folder, a clock that is set back, a full table of processes.

Each is one message and exit 1 or 2; nothing is lost; when the cause is gone, the same command gives the same rows.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import smallest
from experiments.compare import main
from looping import for_each
from rope_jax.study.files import read_rows
from rope_jax.study.launchers import processes

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Refusal:
    """Makes the system refuse to change a folder, from the first change on whose path has a text in it.

    Audit events of Python come before the system is asked, and may raise.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.began = False
        sys.addaudithook(self._hear)

    def begin(self, folder: Path, text: str, number: int) -> None:
        self.text, self.number, self.began = text, number, False
        self.folder = str(folder)

    def end(self) -> None:
        """Lets everything pass again."""
        self.folder = None

    def _hear(self, event: str, args: tuple) -> None:
        if self.folder is None or event not in ("open", "os.mkdir", "os.rename"):
            return
        path = args[1] if event == "os.rename" else args[0]
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).startswith(self.folder):
            return
        if event == "open" and not args[2] & _WRITES:
            return
        self.began = self.began or self.text in os.fspath(path)
        if self.began:
            raise OSError(self.number, os.strerror(self.number), os.fspath(path))


@pytest.fixture(scope="module")
def _refusal():
    return Refusal()


@pytest.fixture
def refusal(_refusal):
    yield _refusal
    _refusal.end()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "smallest.py"
    path.write_text(smallest.CONFIG)
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    main([str(config), "--out", str(out)])
    return out


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    """They take most of the time."""
    monkeypatch.setattr("rope_jax.report.plots.by_length", lambda lines: {})


def refused(arguments, status, message, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == status, said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if not line.startswith("estimate:") and not line.endswith(": finished")]
    assert len(lines) == 1, said
    assert re.search(message, lines[0]), said


# the first change that is refused: all kinds of files, in the order in which they are written
PLACES = (
    "study.json",
    "/trainings",
    "/lock",
    "training.json",
    "log.jsonl",
    "SHA256SUMS",
    "rows-",
    "sessions",
    "rows.jsonl",
    "table.",
)


def check_refusal(place, number, config, finished, refusal, out, capsys):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    command = [str(config), "--out", str(out), "--seeds-per-job", "1"]
    refusal.begin(out, place, number)
    try:
        refused(command, 1, rf"error: .*{os.strerror(number)}.* with [012] of 2 trainings to do; the same command", capsys)
        assert refusal.began
    finally:
        refusal.end()
    kept = {path: path.read_bytes() for path in out.glob("trainings/*/rows-*")}
    main(command)
    assert (out / "rows.jsonl").read_bytes() == (finished / "rows.jsonl").read_bytes()
    assert {path: path.read_bytes() for path in kept} == kept


@for_each("place", ["rows-"])
def test_a_full_disk_is_one_message(place, config, finished, refusal, tmp_path, capsys):
    check_refusal(place, errno.ENOSPC, config, finished, refusal, tmp_path / "out", capsys)


@pytest.mark.slow
@for_each(("place", "number"), [(place, number) for place in PLACES for number in (errno.ENOSPC, errno.EROFS)])
def test_a_full_disk_is_one_message_wherever_it_comes(place, number, config, finished, refusal, tmp_path, capsys):
    """And a file system that becomes read-only, as after an error of the disk."""
    check_refusal(place, number, config, finished, refusal, tmp_path / "out", capsys)


def test_a_checkpoint_for_which_there_is_no_room_is_one_message(config, finished, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = [str(config), "--out", str(out)]
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
        refused(command, 1, r"error: checkpoint .* cannot be written .*disk is full.* with 2 of 2 trainings to do", capsys)
    main(command)
    assert (out / "rows.jsonl").read_bytes() == (finished / "rows.jsonl").read_bytes()


def test_a_read_only_folder_can_be_looked_at_and_is_refused_otherwise(config, finished, refusal, capsys):
    refusal.begin(finished, "", errno.EROFS)
    command = [str(config), "--out", str(finished)]
    for flag in ("--status", "--dry-run", "--list"):
        main([*command, flag])
    assert "2 done, 0 running" in capsys.readouterr().out
    refused(command, 2, r"error: --out: The folder .*finished.* cannot be written \(Read-only file system\); give", capsys)


def test_a_clock_that_goes_back_changes_nothing(config, finished, tmp_path, monkeypatch, capsys):
    """That of the day and, though it must not, the other one; files have dates of the future then."""
    out = tmp_path / "out"
    command = [str(config), "--out", str(out), "--checkpoint-seconds", "1000"]
    main([*command, "--seeds", "0"])
    for path in out.rglob("*"):
        os.utime(path, (4e9, 4e9))
    moments = iter(range(10**6, 0, -1))
    backwards = SimpleNamespace(monotonic=lambda: next(moments), time=lambda: next(moments), sleep=time.sleep)

    class Epoch(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(1970, 1, 1, tzinfo=UTC)

    monkeypatch.setattr("rope_jax.study.provenance.datetime", Epoch)
    for module in ("rope_jax.study.work", "rope_jax.training.train"):
        monkeypatch.setattr(f"{module}.time", backwards)
    main([*command, "--seeds", "0", "1"])
    main([*command, "--seeds", "0", "1", "--evaluate.lengths", "2", "3", "5"])
    capsys.readouterr()
    main([*command, "--status"])
    assert "2 done, 0 running" in capsys.readouterr().out
    main(command)
    assert (out / "rows.jsonl").read_bytes() == (finished / "rows.jsonl").read_bytes()
    names = sorted(path.name for path in out.glob("sessions/*"))
    assert len(names) == 3
    assert [name.startswith("19700101") for name in names] == [True, True, False]
    assert sum(len(read_rows(path)) for path in out.glob("sessions/*")) == 3 + 1 + 1 + 2


def test_a_full_table_of_processes_is_one_message(config, finished, tmp_path, monkeypatch, capsys):
    """Whether the first process of a launcher or a later one cannot be started; the others are asked to stop."""
    start = subprocess.Popen
    for most in (0, 1):
        out = tmp_path / str(most)
        command = [str(config), "--out", str(out), "--launcher", "processes", "--jobs", "2", "--seeds-per-job", "1"]
        started = []

        def limited(*args, most=most, started=started, **options):
            if "experiments.cell" not in args[0]:
                return start(*args, **options)
            if len(started) == most:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            started.append(start(*args, **options))
            return started[-1]

        monkeypatch.setattr(processes.subprocess, "Popen", limited)
        refused(command, 1, r"error: Resource temporarily unavailable; is the limit of processes .* reached\?.* 2 of 2", capsys)
        assert all(process.poll() is not None for process in started)
        monkeypatch.setattr(processes.subprocess, "Popen", start)
        main(command[:3])
        assert (out / "rows.jsonl").read_bytes() == (finished / "rows.jsonl").read_bytes()
