"""A SLURM of one node for the tests of this folder."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from rope_jax.study.launchers.options import SlurmOptions

SCRIPT = Path(__file__).parent / "cluster.sh"
PACKAGES = Path(__file__).parents[2] / ".cache" / "slurm"
CANNOT_FETCH = 3  # exit status of the script
DEADLINE_SECONDS = 180  # far above what any step takes


class Cluster:
    """A running cluster; its commands are on PATH."""

    options = SlurmOptions(cpus=1, time="30", throttle=2)

    def ask(self, *command, check=True):
        """Runs a command of SLURM; its stdout."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def states(self):
        """The state of each job, by its number or ARRAY_INDEX. The cluster remembers ended jobs."""
        lines = self.ask("squeue", "--states=all", "--noheader", "--array", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def jobs_of(self, name):
        """The jobs of a name that run or wait."""
        return self.ask("squeue", f"--name={name.replace(' ', '_')}", "--noheader", "--array", "--format=%i").split()

    def waiting(self):
        """The jobs that are queued again and wait for their time."""
        lines = self.ask("squeue", "--states=PENDING", "--noheader", "--array", "--format=%i %r").splitlines()
        return [line.split()[0] for line in lines if line.endswith(" BeginTime")]

    def signal(self, name, job):
        """Signals the steps of a job, without waiting for an answer: scancel tries again while the job ends."""
        with subprocess.Popen(["scancel", f"--signal={name}", job], stderr=subprocess.DEVNULL) as process:
            time.sleep(1)
            process.kill()

    def start_now(self, job):
        """Lets a job that is queued again start without the wait of two minutes."""
        self.until(lambda: self.states()[job] == "PENDING", f"{job} is queued again")
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def until(self, condition, what):
        """Waits for a condition; fails, with the queue, if it does not come true."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"this did not happen: {what}; {self.states()}"
            time.sleep(0.2)

    def until_ended(self, *jobs):
        """Waits until no job of these is in the queue."""
        waiting = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        def ended():
            states = self.states()
            return not any(state in waiting and one.partition("_")[0] in jobs for one, state in states.items())

        self.until(ended, f"{jobs} end")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster with two cores. Skipped where Debian's packages cannot be had."""
    try:
        fetched = subprocess.run(["bash", SCRIPT, "fetch", PACKAGES], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no bash here")
    if fetched.returncode == CANNOT_FETCH:
        pytest.skip(f"SLURM's packages cannot be fetched: {fetched.stderr.strip()}")
    assert fetched.returncode == 0, fetched.stderr
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run(["bash", SCRIPT, "up", PACKAGES, folder], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _variables(folder / "env").items():
                patch.setenv(name, value)
            yield Cluster()
    finally:
        subprocess.run(["bash", SCRIPT, "down", folder], check=True)


def _variables(file):
    """What a file of `export` lines changes in the environment."""
    text = subprocess.run(["bash", "-c", '. "$1" && env -0', "bash", file], capture_output=True, text=True, check=True).stdout
    variables = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
    return {name: value for name, value in variables.items() if os.environ.get(name) != value and name != "_"}
