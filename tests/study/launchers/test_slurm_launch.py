"""What the launcher submits, with programs in the place of SLURM's."""

import shlex
from dataclasses import replace

import pytest

from rope_jax.study.launchers import slurm
from rope_jax.study.launchers.base import Launch
from rope_jax.study.options import Watch
from rope_jax.study.plan import lacking, make_plan
from rope_jax.study.store import open_store

ARGUMENTS = ["my config.py", "--out", "out", "--launcher", "slurm"]


class Remarks(Watch):
    """Keeps what is said."""

    def __init__(self):
        self.said_so_far = []

    def said(self, text):
        self.said_so_far.append(text)


@pytest.fixture
def study(toy, tmp_path, programs):
    """A study of four cells with two seeds each, on a cluster that takes everything: job 1, job 2 ..."""
    programs("sbatch", f'echo >> "{tmp_path}/count"; wc -l < "{tmp_path}/count"')
    programs("scontrol", "echo 'MaxArraySize            = 1001'")
    programs("squeue", f'cat "{tmp_path}/queue"')
    (tmp_path / "queue").write_text("")
    store = open_store(tmp_path / "out")
    return Launch(experiment=toy, store=store, arguments=ARGUMENTS, command="", watch=Remarks())


def submissions(study):
    """The identities of each job, of all arrays, and the last line of each script."""
    folders = sorted((study.store.path / "launch").iterdir())
    jobs = [[line.split() for line in file.read_text().splitlines()] for f in folders for file in f.glob("trainings")]
    return jobs, [file.read_text() for f in folders for file in f.glob("*.sh")]


def missing(study):
    return [one.planned.cell.training(one.seed) for one in lacking(make_plan(study.experiment, study.store), study.store)]


def test_seeds_of_a_cell_share_a_job_and_a_job_follows_that_goes_on(study):
    assert not slurm.launch(study)
    names = missing(study)
    jobs, (array, after) = submissions(study)
    assert jobs == [[names[i : i + 2] for i in range(0, 8, 2)]]
    assert shlex.join(["-m", "experiments.cell", *ARGUMENTS, "--training"]) in array
    assert "--array=0-3" in array
    assert after.splitlines()[-1].endswith(shlex.join(["-m", "experiments.compare", *ARGUMENTS, "--finished-before", "0"]))
    assert "--dependency=afterany:1" in after


def test_seeds_per_job_and_the_largest_array_bound_what_is_submitted(study, programs):
    programs("scontrol", "echo 'MaxArraySize            = 3'")
    slurm.launch(replace(study, seeds_per_job=1))
    assert submissions(study)[0] == [[[name] for name in missing(study)[:3]]]


def test_what_is_in_the_queue_is_not_submitted_again(study, tmp_path):
    slurm.launch(study)
    (tmp_path / "queue").write_text("1_0\n1_1\n1_2\n1_3\n2\n")
    assert not slurm.launch(study)
    assert len(submissions(study)[0]) == 1
    assert "in SLURM's queue already" in study.watch.said_so_far[-1]
    (tmp_path / "queue").write_text("1_0\n1_3\n2\n")
    slurm.launch(study)
    first, second = submissions(study)[0]
    assert second == first[1:3]


def test_an_array_that_finished_nothing_is_not_followed_by_another(study):
    cell = make_plan(study.experiment, study.store).planned[0].cell
    study.store.begin()
    for seed in study.experiment.seeds:
        study.store.training(cell, seed).fail("for the test")  # over, with its reason recorded
    with pytest.raises(ValueError, match=r"finished no training, and 6 are missing; see the logs"):
        slurm.launch(replace(study, finished_before=2))
    assert not (study.store.path / "launch").exists()
    retrying = [*ARGUMENTS, "--retry-failed", "--finished-before", "1"]
    slurm.launch(replace(study, finished_before=1, arguments=retrying))
    again = submissions(study)[1][1].splitlines()[-1]
    assert again.endswith("experiments.compare " + shlex.join([*ARGUMENTS, "--finished-before", "2"]))


def test_nothing_is_submitted_where_nothing_is_missing(study):
    for planned in make_plan(study.experiment, study.store).planned:
        for seed in planned.cell.seeds:
            study.store.training(planned.cell, seed).fail("for the test")
    assert slurm.launch(study)
    assert not (study.store.path / "launch").exists()
