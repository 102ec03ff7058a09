"""Batch scripts of SLURM: their text, and how they are submitted.

What SLURM does with a job, measured with version 22.05 (`tests/slurm` repeats it), and what follows:

- Preemption and the end of the time limit signal the steps of a job, not its script. So the command is a step (`srun`).
- On preemption the step gets SIGCONT and SIGTERM, and is killed after the partition's grace time. SLURM queues the job again only
  if it still runs then: a job that ends by itself before is over, whatever its status. So the script asks for it (`scontrol
  requeue`) when the command ends with status 143. It may then exit at once. What stays is signalled once more, then killed.
- `scancel` sends SIGTERM as well, and `scontrol requeue` would start a cancelled job again. So the script looks at the state
  first: it is RUNNING where the job is preempted or its time is nearly up, and COMPLETING where it is cancelled.
- The last job of an array has the array's own number as its SLURM_JOB_ID. `scontrol requeue` of that number stops and restarts
  all jobs of the array. So a job is named by its array and its index.
- A job that is queued again starts after two minutes at the earliest, with the same index. A job after the array waits for it.
- The warning of the time limit comes 90 to 120 seconds before it.
- A job that is submitted from inside a job would inherit its variables (SLURM_*), so these are removed.
"""

import getpass
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from rope_jax.study.files import write_whole
from rope_jax.study.launchers.options import SlurmOptions

_JOBS_FILE, _NUMBER_FILE = "trainings", "job"  # of a submission: a line of identities for each job; the number of the array
_STOPPED = 143  # exit status of a command that was asked to stop and can go on later: 128 + SIGTERM
_FOLLOW_UP_MINUTES = 30  # the report of a study, or the submission of its next jobs
_REMEDIES = {  # by a part of sbatch's message
    "partition": "sinfo lists the partitions; choose one with --slurm.partition",
    "time limit": "sinfo shows the limit of each partition; lower --slurm.time",
    "job array": "run more trainings in one job with --seeds-per-job",
    "account": "choose another --slurm.account, --slurm.partition or --slurm.qos, or run more trainings in one job",
    "processors": "lower --slurm.cpus",
    "memory": "lower --slurm.memory",
    "node configuration": "lower --slurm.cpus, --slurm.memory or --slurm.gpus, or choose another --slurm.partition",
    "gres": "lower --slurm.gpus, or choose another --slurm.partition",
    "contact": "try again when scontrol ping says that it is up",
    "": "change the flags --slurm.*",
}


def script(command: Sequence[str], jobs_file: Path, jobs: int, options: SlurmOptions, *, name: str, directory: Path) -> str:
    """The batch script of an array of jobs.

    Args:
      command: what each job runs, with the words of its line of jobs_file behind it. SIGTERM and SIGUSR2 ask it to save its
        state and to exit with 143. It is then run again later, unless its job was cancelled.
      jobs_file: a line for each job: the identities of its trainings, separated by spaces. A job writes its log beside it, as
        `INDEX.log`.
      jobs: how many.
      options: what a job asks for.
      name: of the jobs.
      directory: where the command runs.

    Raises:
      ValueError: a path cannot stand in a script.
    """
    throttle = "" if options.throttle is None else f"%{options.throttle}"
    requested = [f"--array=0-{jobs - 1}{throttle}", "--signal=USR2@90", *_requested(options, name)]
    line = f'"$((SLURM_ARRAY_TASK_ID + 1))p" {shlex.quote(str(jobs_file))}'
    body = [
        f"read -ra trainings < <(sed -n {line})",
        "trap : TERM USR2  # these are for the command",
        "status=0",
        f'srun --cpus-per-task={options.cpus} --kill-on-bad-exit=1 {shlex.join(command)} "${{trainings[@]}}" || status=$?',
        'job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
        f'if [ "$status" = {_STOPPED} ] && [[ "$(scontrol --oneliner show job "$job")" = *" JobState=RUNNING "* ]]; then',
        '  scontrol requeue "$job"',
        "fi",
        'exit "$status"',
    ]
    return _text(requested, jobs_file.parent, "%a.log", directory, body)


def follow_up_script(command: Sequence[str], folder: Path, job: str, options: SlurmOptions, *, name: str, directory: Path) -> str:
    """The batch script of the job that runs a command when an array has ended, however that ended.

    Args:
      command: what it runs. It may be stopped and started again.
      folder: of its log, `follow_up.log`.
      job: the number of the array.
      options: of the array. This job asks for its partition, account and quality of service, one core, and half an hour at most.
      name, directory: as for `script`.

    Raises:
      ValueError: a path cannot stand in a script.
    """
    time = None if options.minutes is None else str(math.ceil(min(options.minutes, _FOLLOW_UP_MINUTES)))
    small = SlurmOptions(partition=options.partition, account=options.account, qos=options.qos, cpus=1, time=time)
    requested = [f"--dependency=afterany:{job}", *_requested(small, name)]
    return _text(requested, folder, "follow_up.log", directory, [shlex.join(command)])


def submit(command: Sequence[str], jobs: Sequence[Sequence[str]], out: Path, options: SlurmOptions) -> str:
    """Submits an array of jobs.

    The script and its lines are written in `out/launch/TIME-HOST-PID/`, beside the logs to come.

    Args:
      command: what each job runs, in the present directory, with the identities of its trainings behind it.
      jobs: the identities of the trainings of each job.
      out: the folder of the study. It gives the jobs their name.
      options: what a job asks for.

    Returns:
      The number of the array.

    Raises:
      ValueError: SLURM is not there, or refuses the jobs; nothing is left behind then.
    """
    with _launch_folder(out) as folder:
        jobs_file = folder / _JOBS_FILE
        write_whole(jobs_file, "".join(" ".join(job) + "\n" for job in jobs))
        text = script(command, jobs_file, len(jobs), options, name=_job_name(out), directory=Path.cwd())
        number = _sbatch(folder / "job.sh", text)
        write_whole(folder / _NUMBER_FILE, number + "\n")
    return number


def submit_after(job: str, command: Sequence[str], out: Path, options: SlurmOptions) -> str:
    """Submits a small job that runs a command once, in the present directory, when an array has ended.

    Args:
      job: the number of the array.
      command: what it runs.
      out, options: as for `submit`.

    Returns:
      The number of the job.

    Raises:
      ValueError: SLURM is not there, or refuses the job.
    """
    with _launch_folder(out) as folder:
        text = follow_up_script(command, folder, job, options, name=_job_name(out), directory=Path.cwd())
        return _sbatch(folder / "follow_up.sh", text)


def queued(out: Path) -> set[str]:
    """The identities of the trainings of a study whose jobs run or wait; empty if SLURM does not answer."""
    listing = _ask("squeue", f"--user={getpass.getuser()}", f"--name={_job_name(out)}", "--noheader", "--array", "--format=%i")
    jobs = set(listing.split())
    found: set[str] = set()
    for file in (out / "launch").glob(f"*/{_NUMBER_FILE}"):
        number = file.read_text(encoding="utf-8").strip()
        lines = (file.parent / _JOBS_FILE).read_text(encoding="utf-8").splitlines()
        found.update(*(line.split() for index, line in enumerate(lines) if f"{number}_{index}" in jobs))
    return found


def largest_array() -> int | None:
    """How many jobs SLURM takes in one array; None if it does not answer."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), flags=re.MULTILINE)
    return int(found[1]) if found else None


def _ask(*command: str) -> str:
    """What a command of SLURM prints; nothing if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _requested(options: SlurmOptions, name: str) -> list[str]:
    """What both kinds of jobs ask for. Options that come later win, so that `extra` may change the first ones."""
    given = {
        "partition": options.partition,
        "time": options.time,
        "gpus": options.gpus or None,
        "mem": options.memory,
        "account": options.account,
        "qos": options.qos,
    }
    return [
        *("--nodes=1", "--ntasks=1", f"--cpus-per-task={options.cpus}", "--requeue", "--open-mode=append"),
        f"--job-name={name}",
        *(f"--{option}={value}" for option, value in given.items() if value is not None),
        *(f"--{option}" for option in options.extra),
    ]


def _text(requested: Sequence[str], folder: Path, log: str, directory: Path, body: Sequence[str]) -> str:
    """A batch script. The log's name is a pattern of sbatch's; the folder's is not."""
    pattern = str(folder).replace("%", "%%") + f"/{log}"
    return "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH {_directive(option)}" for option in (*requested, f"--output={pattern}")),
            "set -eu",
            f"cd -- {shlex.quote(str(directory))}",
            *body,
            "",
        )
    )


def _directive(option: str) -> str:
    """An option as sbatch reads it in a script: in double quotes where it needs them, without the shell's expansions."""
    name, equals, value = option.partition("=")
    if "\\" in value or not value.isprintable():
        raise ValueError(f"a path for SLURM must be printable and without backslashes, got {value!r}; give another --out")
    plain = re.fullmatch(r"[\w.,:%/@+=-]*", value, flags=re.ASCII)
    return option if plain else name + equals + '"' + value.replace('"', '\\"') + '"'


def _job_name(out: Path) -> str:
    """After the folder of the study, so that `squeue --name` and `scancel --name` take all its jobs together."""
    return re.sub(r"[^\w.-]", "_", Path(os.path.abspath(out)).name, flags=re.ASCII)


@contextmanager
def _launch_folder(out: Path) -> Iterator[Path]:
    """Makes a folder for a submission, as an absolute path; removes it again on an error."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    folder = Path(os.path.abspath(out)) / "launch" / f"{moment}-{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # earlier submissions are in it
            folder.parent.rmdir()
        raise


def _sbatch(path: Path, text: str) -> str:
    """Writes a script and submits it; the number of its job."""
    write_whole(path, text)
    inherited = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith("SLURM_")}
    try:
        done = subprocess.run(["sbatch", "--parsable", str(path)], env=inherited, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(
            f"--launcher slurm needs SLURM's sbatch, which cannot be run here ({error.strerror}); call the command where the "
            "cluster takes jobs, or use --launcher processes"
        ) from error
    if done.returncode != 0:
        failed = re.search(r"^sbatch: error: Batch job submission failed: (.+)", done.stderr, flags=re.MULTILINE)
        message = failed[1] if failed else done.stderr.strip().partition("\n")[0].removeprefix("sbatch: ").removeprefix("error: ")
        remedy = next(
            (remedy for part, remedy in _REMEDIES.items() if part.lower() in message.lower()), "change the flags --slurm"
        )
        raise ValueError(f"sbatch refused the job: {message}; {remedy}")
    return done.stdout.strip().partition(";")[0]
