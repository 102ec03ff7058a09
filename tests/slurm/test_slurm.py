"""Jobs on a real SLURM: killed, preempted, out of time, cancelled, and the job that comes after them."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from rope_jax.study.launchers import batch
from rope_jax.study.launchers.options import SlurmOptions

pytestmark = pytest.mark.slow
STANDIN = Path(__file__).parent / "standin.py"


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The folder of a study, with a name that is hard to quote; jobs run beside it."""
    folder = tmp_path / 'it\'s "so" $HOME %a #1' / "out put"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    return folder


def events(out, training):
    path = out / f"{training}.events"
    return path.read_text().splitlines() if path.exists() else []


def finished(out):
    return sorted(path.stem for path in out.glob("*.rows"))


def test_an_array_survives_all_that_can_happen_to_its_jobs(cluster, out):
    trainings = [f"t{number}" for number in range(6)]
    command = [sys.executable, str(STANDIN), str(out)]
    array = batch.submit(command, [[one] for one in trainings], out, cluster.options)
    look = f"cd {shlex.quote(str(out))} && echo *.rows >> seen"
    after = batch.submit_after(array, ["bash", "-c", look], out, cluster.options)

    def halted(*numbers):
        for number in numbers:
            cluster.until(lambda number=number: "halt" in events(out, f"t{number}"), f"t{number} reaches its halt")

    halted(0, 1)
    assert events(out, "t2") == []  # two at a time
    os.kill(int((out / "t0.pid").read_text()), signal.SIGKILL)
    cluster.signal("USR2", f"{array}_1")  # as SLURM does when the time is nearly up
    halted(2, 3)
    cluster.ask("scancel", f"{array}_2")
    halted(4)
    urgent = cluster.ask("sbatch", "--parsable", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    cluster.until_ended(urgent)
    (out / "go_on").touch()
    for number in (1, 3, 4):
        cluster.start_now(f"{array}_{number}")
    cluster.until_ended(array, after)

    where = f"in {out.parent}"
    went_on = [f"start at 10 {where}"]
    assert {one: events(out, one)[1:] for one in trainings} == {
        "t0": ["halt"],
        "t1": ["halt", "SIGUSR2 at 10", *went_on],
        "t2": ["halt", "SIGTERM at 10"],
        "t3": ["halt", "SIGTERM at 10", *went_on],
        "t4": ["halt", "SIGTERM at 10", *went_on],
        "t5": ["halt"],
    }
    assert {events(out, one)[0] for one in trainings} == {f"start at 0 {where}"}
    assert finished(out) == ["t1", "t3", "t4", "t5"]
    assert (out / "seen").read_text() == "t1.rows t3.rows t4.rows t5.rows\n"  # once, after all others
    states = cluster.states()
    assert (states[f"{array}_0"], states[f"{array}_2"]) == ("FAILED", "CANCELLED")

    again = batch.submit(command, [["t0", "t2"]], out, cluster.options)  # the next array: what is missing, here in one job
    cluster.until_ended(again)
    assert finished(out) == trainings
    assert [(out / f"{one}.rows").read_text() for one in ("t0", "t2")] == ["0\n", "10\n"]


def test_a_command_that_is_preempted_before_it_handles_signals_runs_again(cluster, out):
    array = batch.submit(["bash", "-c", "echo >> starts; sleep 1000", "bash"], [["a"]], out, cluster.options)
    starts = out.parent / "starts"
    cluster.until(starts.exists, "it starts")
    urgent = cluster.ask("sbatch", "--parsable", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=true")
    cluster.until_ended(urgent)
    cluster.start_now(f"{array}_0")
    cluster.until(lambda: starts.read_text() == "\n\n", "it starts again")
    cluster.ask("scancel", array)
    cluster.until_ended(array)


def test_a_job_that_is_cancelled_as_a_whole_stays_cancelled(cluster, out):
    """By the name that all jobs of a study have, the one after the array included."""
    array = batch.submit([sys.executable, str(STANDIN), str(out)], [["a"], ["b"], ["c"]], out, cluster.options)
    after = batch.submit_after(array, ["touch", str(out / "seen")], out, cluster.options)
    for one in ("a", "b"):
        cluster.until(lambda one=one: "halt" in events(out, one), f"{one} reaches its halt")
    assert batch.queued(out) == {"a", "b", "c"}
    cluster.ask("scancel", "--name=out_put")
    cluster.until_ended(array, after)
    states = cluster.states()
    assert {states[job] for job in (after, *(f"{array}_{index}" for index in range(3)))} == {"CANCELLED"}
    assert not (out / "seen").exists()
    assert batch.queued(out) == set()


def test_what_slurm_refuses_is_an_error_with_its_message(cluster, out):
    for options, message, remedy in (
        (SlurmOptions(partition="none"), "partition", "--slurm.partition"),
        (SlurmOptions(time="2-0"), "time limit", "--slurm.time"),
        (SlurmOptions(cpus=64), "processors", "--slurm.cpus"),
        (SlurmOptions(gpus=1), "gres", "--slurm.gpus"),
        (SlurmOptions(memory="900G"), "configuration", "--slurm.memory"),
        (SlurmOptions(extra=("no-such-option",)), "option '--no-such-option'", "--slurm"),
    ):
        with pytest.raises(ValueError, match=f"^sbatch refused the job: .*{message}.*; .*{remedy}"):
            batch.submit(["true"], [["a"]], out, options)
    with pytest.raises(ValueError, match=r"array.*--seeds-per-job"):
        batch.submit(["true"], [["a"]] * (batch.largest_array() + 1), out, cluster.options)
    assert list(out.iterdir()) == []
