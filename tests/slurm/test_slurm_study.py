"""A study on a real SLURM: jobs are killed and preempted, and the rows are those of one process that nothing disturbed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CONFIG = """
from rope_jax import ALiBi, RoPE
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy


def experiment() -> Experiment:
    return Experiment(
        name="six trainings",
        tasks=(Copy(alphabet=4),),
        methods=(Method(encoder=RoPE()), Method(encoder=ALiBi())),
        model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=20_000, batch_size=4, max_length=3),
        evaluate=EvaluateConfig(lengths=(2, 3, 5), examples=16),
        seeds=(0, 1, 2),
    )
"""
SLURM = ("--launcher", "slurm", "--seeds-per-job", "1", "--slurm.cpus", "1", "--slurm.time", "30", "--slurm.throttle", "2")


class Study:
    """A folder of six trainings on a cluster."""

    def __init__(self, config, out):
        self.config, self.out = config, out

    def compare(self, *flags):
        """Runs the command; its stdout."""
        command = [sys.executable, "-m", "experiments.compare", str(self.config), "--out", str(self.out), *flags]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def unfinished(self):
        """The names of trainings that were begun and have no rows."""
        folders = (self.out / "trainings").glob("*")
        return {folder.name for folder in folders if (folder / "log.jsonl").exists() and not list(folder.glob("rows-*"))}

    def log(self, name):
        """The log of a training, as lines."""
        return (self.out / "trainings" / name / "log.jsonl").read_text().splitlines()

    def saved(self, name):
        """The step of the last checkpoint of a training."""
        return max(int(folder.name) for folder in (self.out / "trainings" / name / "checkpoint").iterdir())

    def process(self, name):
        """The number of the process that works on a training; None if there is none."""
        number = (self.out / "trainings" / name / "lock").read_text().strip().partition(":")[2]
        return int(number) if number and Path("/proc", number).exists() else None

    def at_work(self):
        """The names of trainings that are trained just now and have come some way."""
        return {name for name in self.unfinished() if self.process(name) is not None and len(self.log(name)) > 5}

    def arrays(self):
        """The number of each array that was submitted, and how many jobs it has."""
        files = sorted((self.out / "launch").glob("*/job"))
        return [(file.read_text().strip(), len((file.parent / "trainings").read_text().splitlines())) for file in files]


def test_a_study_that_is_killed_and_preempted_has_the_rows_of_one_that_is_not(cluster, tmp_path):
    config = tmp_path / "six.py"
    config.write_text(CONFIG)
    undisturbed = Study(config, tmp_path / "here")
    undisturbed.compare()
    study = Study(config, tmp_path / "on slurm")
    study.compare("--checkpoint-seconds", "1", *SLURM)
    assert study.compare(*SLURM) == ""  # a second time: all is in the queue
    [(array, jobs)] = study.arrays()
    assert jobs == 6

    cluster.until(lambda: len(study.at_work()) == 2, "two trainings are at work")
    killed = min(study.at_work())
    os.kill(study.process(killed), signal.SIGKILL)
    cluster.until(lambda: len(study.at_work() - {killed}) == 2, "two others are at work")
    urgent = cluster.ask("sbatch", "--parsable", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1")
    cluster.until_ended(urgent)
    requeued = cluster.waiting()
    assert len(requeued) == 2
    interrupted = {name: (study.saved(name), study.log(name)) for name in study.unfinished() - {killed}}
    assert len(interrupted) == 2

    def over():
        for job in cluster.waiting():
            cluster.start_now(job)
        return (study.out / "rows.jsonl").exists() and not cluster.jobs_of(study.out.name)

    cluster.until(over, "the last job writes the report")
    assert (study.out / "rows.jsonl").read_bytes() == (undisturbed.out / "rows.jsonl").read_bytes()
    assert (study.out / "table.md").read_bytes() == (undisturbed.out / "table.md").read_bytes()
    states = [cluster.states()[f"{array}_{index}"] for index in range(6)]
    assert sorted(states) == ["COMPLETED"] * 5 + ["FAILED"]
    assert [jobs for _, jobs in study.arrays()] == [6, 1]  # the one that was killed
    for name, (step, lines) in interrupted.items():
        assert 0 < step < 20_000
        kept = [
            line for line in lines if json.loads(line)["step"] <= step
        ]  # with the speeds of the first attempt: not trained again
        assert study.log(name)[: len(kept)] == kept
