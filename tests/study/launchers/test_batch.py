"""Batch scripts, run by bash with programs in the place of SLURM's. tests/slurm runs them on SLURM itself."""

import os
import subprocess
from pathlib import Path

import pytest

from looping import for_each
from rope_jax.study.launchers import batch
from rope_jax.study.launchers.options import SlurmOptions

HARD = 'it\'s "so" $HOME `x` %a #1 \u00e9'  # a name that is hard to quote


def run_script(folder, command, index, status, state):
    """Runs the script of an array of two jobs; its exit status, what was run, in which folder, and what was asked of SLURM."""
    lines = folder / "jobs" / "trainings"
    lines.parent.mkdir(exist_ok=True)
    lines.write_text("a1 a2\nb\n")
    text = batch.script(command, lines, 2, SlurmOptions(cpus=3), name="n", directory=folder)
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(index), "STATUS": str(status), "STATE": state}
    done = subprocess.run(["bash", "-c", text], env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_a_job_runs_its_trainings_and_asks_to_run_again_only_if_it_was_stopped(programs, tmp_path):
    programs("srun", 'printf "%s\\n" "$PWD" "$@"; exit "$STATUS"')
    programs("scontrol", 'if [ "$1" = --oneliner ]; then echo "JobId=8 JobState=$STATE Reason=None"; else echo "$@"; fi')
    folder = tmp_path / HARD
    folder.mkdir()
    command = ["python", HARD, "--training"]
    for index, trainings in enumerate((["a1", "a2"], ["b"])):
        for status, state, requeued in (
            (0, "RUNNING", False),
            (1, "RUNNING", False),
            (137, "RUNNING", False),
            (143, "RUNNING", True),
            (143, "COMPLETING", False),  # as after scancel
            (143, "", False),
        ):
            said = [str(folder), "--cpus-per-task=3", "--kill-on-bad-exit=1", *command, *trainings]
            said += [f"requeue 7_{index}"] if requeued else []
            assert run_script(folder, command, index, status, state) == (status, said), (status, state)


def test_a_job_in_a_folder_that_is_gone_ends_with_an_error(programs, tmp_path):
    programs("srun", "touch ran")
    text = batch.script(["true"], tmp_path / "trainings", 1, SlurmOptions(), name="n", directory=tmp_path / "gone")
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gone" in done.stderr
    assert not (tmp_path / "ran").exists()


def directives(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_options_become_directives(tmp_path):
    options = SlurmOptions(
        partition="gpu,spot", time="1-12", gpus=2, cpus=8, memory="16G", throttle=4, account="lab", qos="low",
        extra=("constraint=a100|h100", "exclusive", "comment=a \"b\""),
    )  # fmt: skip
    folder = Path('/p/it\'s 100% "so"')
    written = directives(batch.script(["true"], folder / "trainings", 6, options, name="study", directory=tmp_path))
    assert written == [
        *("--array=0-5%4", "--signal=USR2@90", "--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--requeue"),
        *("--open-mode=append", "--job-name=study", "--partition=gpu,spot", "--time=1-12", "--gpus=2", "--mem=16G"),
        *("--account=lab", "--qos=low", '--constraint="a100|h100"', "--exclusive", '--comment="a \\"b\\""'),
        '--output="/p/it\'s 100%% \\"so\\"/%a.log"',
    ]
    after = directives(batch.follow_up_script(["true"], folder, "7", options, name="study", directory=tmp_path))
    assert after == [
        *("--dependency=afterany:7", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--requeue", "--open-mode=append"),
        *("--job-name=study", "--partition=gpu,spot", "--time=30", "--account=lab", "--qos=low"),
        '--output="/p/it\'s 100%% \\"so\\"/follow_up.log"',
    ]
    short = SlurmOptions(time="10:30")
    assert "--time=11" in directives(batch.follow_up_script(["true"], folder, "7", short, name="study", directory=tmp_path))
    plain = directives(batch.script(["true"], Path("/p/trainings"), 1, SlurmOptions(), name="study", directory=tmp_path))
    assert plain[0] == "--array=0-0"
    plain += directives(batch.follow_up_script(["true"], folder, "7", SlurmOptions(), name="study", directory=tmp_path))
    assert not [one for one in plain if one.startswith(("--partition", "--time", "--gpus", "--mem", "--account", "--qos"))]


def test_a_submission_is_written_down_whole_and_does_not_inherit_the_job_that_makes_it(programs, tmp_path, monkeypatch):
    programs("sbatch", f'env > "{tmp_path}/env"; printf "%s\\n" "$@" > "{tmp_path}/arguments"; echo "12;cluster"')
    programs("squeue", 'echo "12_1"; echo "13_0"')
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    out = tmp_path / HARD
    assert batch.submit(["true"], [["a1", "a2"], ["b1", "b2"]], out, SlurmOptions()) == "12"
    [folder] = (out / "launch").iterdir()
    assert (tmp_path / "arguments").read_text().splitlines() == ["--parsable", str(folder / "job.sh")]
    assert "--job-name=it_s__so___HOME__x___a__1__" in (folder / "job.sh").read_text()
    environment = (tmp_path / "env").read_text()
    assert "SLURM_MEM_PER_NODE" not in environment
    assert "SLURM_CONF=/etc/slurm.conf" in environment
    assert batch.queued(out) == {"b1", "b2"}
    assert batch.submit_after("12", ["true"], out, SlurmOptions()) == "12"
    assert batch.queued(out) == {"b1", "b2"}


def test_without_slurm_the_error_says_so_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"needs SLURM's sbatch.*--launcher processes"):
        batch.submit(["true"], [["a"]], tmp_path / "out", SlurmOptions())
    assert list((tmp_path / "out").iterdir()) == []
    assert batch.queued(tmp_path / "out") == set()
    assert batch.largest_array() is None


def test_a_refusal_shows_the_message_of_sbatch_and_a_remedy(programs, tmp_path):
    for said, shown in (
        ("sbatch: error: a note\nsbatch: error: Batch job submission failed: Bad partition name", "Bad partition name; sinfo"),
        ("sbatch: unrecognized option '--x'\nTry \"sbatch --help\"", "unrecognized option '--x'; change the flags"),
        ("sbatch: error: odd", "odd; change the flags"),
        ("", "; change the flags"),
    ):
        programs("sbatch", f"cat >&2 <<'END'\n{said}\nEND\nexit 1")
        with pytest.raises(ValueError, match=r"^sbatch refused the job: ") as error:
            batch.submit(["true"], [["a"]], tmp_path / "out", SlurmOptions())
        assert str(error.value).startswith(f"sbatch refused the job: {shown}")


def test_a_path_that_no_script_can_hold_is_refused(programs, tmp_path):
    for name in ("a\\b", "a\nb"):
        with pytest.raises(ValueError, match=r"printable and without backslashes.*--out"):
            batch.submit(["true"], [["a"]], tmp_path / name, SlurmOptions())


@for_each(
    ("options", "message"),
    [
        ({"gpus": -1}, "slurm.gpus must not be negative"),
        ({"cpus": 0}, "slurm.cpus must be at least 1"),
        ({"throttle": 0}, "slurm.throttle must be at least 1"),
        ({"partition": "a b"}, "slurm.partition must be a name"),
        ({"account": ""}, "slurm.account must be a name"),
        ({"qos": "a\nb"}, "slurm.qos must be a name"),
        ({"memory": "16 GB"}, "slurm.memory must be a number"),
        ({"time": "tomorrow"}, "slurm.time must be minutes"),
        ({"time": "2"}, "slurm.time must be at least 3 minutes"),
        ({"extra": ("--constraint=a100",)}, "slurm.extra must hold long options"),
        ({"extra": ("C=a100",)}, "slurm.extra must hold long options"),
        ({"extra": ("comment=a\n#SBATCH --x",)}, "slurm.extra must hold long options"),
        ({"extra": ("comment=a\\b",)}, "slurm.extra must hold long options"),
        ({"extra": ("array=1-3",)}, "slurm.extra must not hold array"),
        ({"extra": ("exclusive", "requeue")}, "slurm.extra must not hold requeue"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        SlurmOptions(**options)


def test_times_are_read_as_sbatch_reads_them():
    for time, minutes in {
        None: None, "90": 90, "90:30": 90.5, "2:00:30": 120.5, "1-12": 36 * 60, "1-12:30": 36 * 60 + 30, "0-0:10:30": 10.5,
    }.items():  # fmt: skip
        assert SlurmOptions(time=time).minutes == minutes
