"""Processes that die at every kind of moment: the same command again gives the same bytes, and trains nothing twice."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import smallest
from killing import Moment
from looping import for_each
from rope_jax.study.files import read_rows
from rope_jax.study.store import TrainingFolder

ROOT = Path(__file__).parents[2]
CONFIG = (
    smallest.CONFIG
    + """
from pathlib import Path
import killing
killing.arm(Path(__file__).with_name("moment.json"))
"""
)
# a checkpoint after every chunk of training, which are two: a step, and seven; each seed is trained alone
FLAGS = ("--checkpoint-seconds", "0", "--seeds-per-job", "1")
OLDER = "checkpoint/1"  # stays where it was killed while it was removed, until the next checkpoint
IMPORTS = (" numpy$", " jax$", " rope_jax.study.config$")  # lines of -X importtime, near the beginning, the middle and the end

MOMENTS = (
    # begin
    Moment("load"),
    Moment("call", "rope_jax.study.launchers.here:launch"),
    Moment("open", r"/\.study\.json\."),
    Moment("os.rename", r"/study\.json$"),
    Moment("os.mkdir", r"/trainings$"),
    Moment("open", r"/lock$"),
    Moment("call", "rope_jax.study.work:check_evaluation"),
    # training
    Moment("os.rename", r"/training\.json$"),
    Moment("os.rename", r"/training\.json$", 2),  # of the second seed; the first is finished
    Moment("compile", "train_chunk"),
    Moment("open", r"/log\.jsonl$", 2),
    Moment("call", "experiments.display:Display.moved"),
    # checkpoints: of the first chunk, then of the second, which removes the first
    Moment("os.mkdir", r"/checkpoint$"),
    Moment("os.mkdir", r"/1\.partial"),
    Moment("open", r"/1\.partial/SHA256SUMS$"),
    Moment("os.rename", r"/checkpoint/1$"),
    Moment("os.mkdir", r"/8\.partial"),
    Moment("os.rename", r"/checkpoint/8$"),
    Moment("shutil.rmtree", r"/checkpoint/1$"),
    Moment("shutil.rmtree", r"/checkpoint/1$", 2),
    # evaluation
    Moment("call", "rope_jax.study.work:evaluate"),
    Moment("compile", "eval|measure"),
    Moment("call", "experiments.display:Display.moved", 4),
    # rows and records
    Moment("call", "rope_jax.study.store:TrainingFolder.finish"),
    Moment("open", r"/\.rows-"),
    Moment("os.rename", r"/rows-[0-9a-f]+\.jsonl$"),
    Moment("os.rename", r"/rows-[0-9a-f]+\.jsonl$", 2),
    Moment("open", r"/sessions/"),
    Moment("open", r"/sessions/", 2),
    # report
    Moment("open", r"/\.rows\.jsonl\."),
    Moment("os.rename", r"/rows\.jsonl$"),
    Moment("os.rename", r"/table\.md$"),
    Moment("os.rename", r"/table\.tex$"),
    Moment("open", r"/\.accuracy_by_length\.png"),
    Moment("os.rename", r"/token_accuracy_by_length\.svg$"),
)
TERMINATED = tuple(
    Moment(kind, what, count, signal.SIGTERM)
    for kind, what, count in (
        ("load", "", 1),
        ("call", "rope_jax.study.work:check_evaluation", 1),
        ("compile", "train_chunk", 1),
        ("os.rename", r"/training\.json$", 1),
        ("open", r"/log\.jsonl$", 2),
        ("open", r"/1\.partial/SHA256SUMS$", 1),
        ("os.rename", r"/checkpoint/8$", 1),
        ("call", "experiments.display:Display.moved", 4),
        ("os.rename", r"/rows-[0-9a-f]+\.jsonl$", 1),
        ("open", r"/sessions/", 2),
        ("os.rename", r"/rows\.jsonl$", 1),
        ("os.rename", r"/table\.tex$", 1),
    )
)


class Study:
    """A config in a folder of its own, and the command that runs it."""

    def __init__(self, folder: Path, cache: Path, *flags: str) -> None:
        folder.mkdir(parents=True)
        self.config, self.out, self.flags = folder / "config.py", folder / "out", (*FLAGS, *flags)
        self.config.write_text(CONFIG)
        self.moment = folder / "moment.json"
        self.environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}

    def start(self, *python: str, module: str = "experiments.compare") -> subprocess.Popen[str]:
        command = [sys.executable, *python, "-m", module, str(self.config), "--out", str(self.out), *self.flags]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, **pipes)

    def run(self) -> tuple[int, str]:
        process = self.start()
        _, said = process.communicate(timeout=300)
        return process.returncode, said

    def killed(self, moment: Moment) -> tuple[int, str]:
        moment.write(self.moment)
        status, said = self.run()
        assert not self.moment.exists(), f"the moment never came: {said}"
        return status, said

    def finished(self) -> dict[str, tuple[int, int]]:
        """Every file of the trainings that have rows, with the moment it was last written."""
        folders = {path.parent for path in self.out.glob("trainings/*/rows-*.jsonl")}
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}

    def report(self) -> dict[str, bytes]:
        """What a user reads, and the rows of every training."""
        files = [*self.out.glob("*.*"), *self.out.glob("trainings/*/rows-*.jsonl")]
        return {str(path.relative_to(self.out)): path.read_bytes() for path in files if path.is_file()}

    def names(self) -> list[str]:
        """All files and folders, without what a session or Orbax names by chance."""
        names = [str(path.relative_to(self.out)) for path in self.out.rglob("*")]
        return sorted(name for name in names if not re.match(rf"sessions/|launch|trainings/.*/({OLDER}|state/)", name))

    def again_as(self, undisturbed: "Study") -> None:
        """The same command again: the same bytes, nothing left over, nothing finished trained again."""
        before = self.finished()
        status, said = self.run()
        assert status == 0, said
        now = self.finished()
        assert {name: now[name] for name in before} == before
        self.is_as(undisturbed)

    def is_as(self, undisturbed: "Study") -> None:
        assert self.report() == undisturbed.report()
        assert self.names() == undisturbed.names()
        for path in self.out.glob("trainings/*/log.jsonl"):
            steps = [entry["step"] for entry in read_rows(path)]
            assert steps == sorted(set(steps))
            assert steps[-1] == 8


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def undisturbed(cache, tmp_path_factory):
    study = Study(tmp_path_factory.mktemp("undisturbed") / "study", cache)
    status, said = study.run()
    assert status == 0, said
    assert len(study.finished()) > 0
    assert len(read_rows(study.out / "rows.jsonl")) == 4
    return study


def folder_of(tmp_path, moment):
    return tmp_path / re.sub(r"\W+", "_", f"{moment.kind} {moment.what} {moment.count}")


@pytest.mark.slow
@for_each("text", IMPORTS)
def test_a_process_killed_while_it_imports_leaves_nothing(text, undisturbed, cache, tmp_path):
    study = Study(tmp_path / text.strip("$ "), cache)
    process = study.start("-X", "importtime")
    for line in process.stderr:
        if re.search(text, line):
            break
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not study.out.exists()


@pytest.mark.slow
@for_each("moment", MOMENTS)
def test_a_process_killed_at_any_moment_loses_nothing(moment, undisturbed, cache, tmp_path):
    study = Study(folder_of(tmp_path, moment), cache)
    assert study.killed(moment)[0] == -signal.SIGKILL
    study.again_as(undisturbed)


@pytest.mark.slow
@for_each("moment", TERMINATED)
def test_sigterm_at_any_moment_is_one_line_and_loses_nothing(moment, undisturbed, cache, tmp_path):
    study = Study(folder_of(tmp_path, moment), cache)
    status, said = study.killed(moment)
    assert status == 143, said
    lines = [line for line in said.splitlines() if line and not line.startswith("estimate:") and not line.endswith(": finished")]
    assert [line.split()[0] for line in lines] == ["terminated"], said
    study.again_as(undisturbed)


@pytest.mark.slow
def test_processes_that_share_a_folder_share_the_work(undisturbed, cache, tmp_path):
    """Both commands end well, and each training is trained once."""
    study = Study(tmp_path / "study", cache)
    for process in [study.start(), study.start()]:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    study.is_as(undisturbed)
    assert trained(study) == trained(undisturbed)


@pytest.mark.slow
@for_each("number", (signal.SIGKILL, signal.SIGSTOP))
def test_a_worker_that_dies_with_a_lock_blocks_nobody(number, undisturbed, cache, tmp_path):
    """Another one that waits for its training takes it over. One that only sleeps has it, and may go on."""
    study = Study(tmp_path / number.name, cache)
    Moment("open", r"/log\.jsonl$", 2, number).write(study.moment)
    holder = study.start()
    wait_until(lambda: not study.moment.exists(), holder)
    other = study.start()
    try:
        if number == signal.SIGSTOP:
            wait_until(lambda: len(list(study.out.glob("trainings/*/rows-*"))) == 1, other)  # of the other training
            holder.send_signal(signal.SIGKILL)
        _, said = other.communicate(timeout=300)
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    assert other.returncode == 0, said
    assert holder.returncode == -signal.SIGKILL
    study.is_as(undisturbed)
    assert trained(study) == trained(undisturbed)


@pytest.mark.slow
@for_each("moment", [Moment("open", r"/log\.jsonl$", 2), Moment("os.rename", r"/rows-[0-9a-f]+\.jsonl$")])
def test_a_launcher_replaces_a_worker_that_is_killed(moment, undisturbed, cache, tmp_path):
    study = Study(folder_of(tmp_path, moment), cache, "--launcher", "processes", "--jobs", "2")
    assert study.killed(moment)[0] == 0
    study.is_as(undisturbed)


@pytest.mark.slow
def test_workers_of_a_launcher_that_is_killed_finish_and_it_can_be_called_again(undisturbed, cache, tmp_path):
    study = Study(tmp_path / "study", cache, "--launcher", "processes", "--jobs", "2")
    launcher = study.start()
    wait_until(lambda: any(study.out.glob("trainings/*/log.jsonl")), launcher)
    launcher.kill()
    launcher.communicate(timeout=60)
    study.again_as(undisturbed)
    assert trained(study) == trained(undisturbed)


@pytest.mark.slow
def test_a_launcher_that_is_terminated_stops_its_workers(undisturbed, cache, tmp_path):
    study = Study(tmp_path / "study", cache, "--launcher", "processes", "--jobs", "2")
    launcher = study.start()
    wait_until(lambda: any(study.out.glob("trainings/*/log.jsonl")), launcher)
    launcher.terminate()
    _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, said
    assert "Traceback" not in said
    for path in study.out.glob("trainings/*/lock"):
        assert TrainingFolder(path.parent).owner() is None
    study.again_as(undisturbed)


def trained(study: Study) -> list[str]:
    """The training of each piece of work that was done, as the sessions record them."""
    lines = [line for path in study.out.glob("sessions/*") for line in read_rows(path)]
    return sorted(line["training"] for line in lines if "training" in line)


def wait_until(condition, process: subprocess.Popen[str]) -> None:
    """Waits for something that a process does."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
