"""What a launcher is given."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rope_jax.study.config import Experiment
from rope_jax.study.launchers.options import SlurmOptions
from rope_jax.study.options import Options, Watch
from rope_jax.study.stop import Stop, StopRequest
from rope_jax.study.store import Store


@dataclass(kw_only=True)
class Launch:
    """Work to launch. A launcher returns whether it is over; if not, it goes on elsewhere.

    Attributes:
      experiment, store: what, and where.
      arguments: those of the command, such as ["configs/quickstart.py", "--out", "out/first"]. `python -m experiments.cell` takes
        the same ones and runs what is missing, or the trainings that --training names.
      command: what the record of a session says was called.
      options: how work is done.
      cores: how many cores a process may use; None is all that it is granted.
      jobs: how many processes work at once; None is as many as there are devices.
      seeds_per_job: trainings of one job.
      slurm: options of SLURM.
      finished_before: how many trainings were finished when jobs were submitted that are over now; None if there were none.
      stop: asked whether to stop.
      watch: told how it goes.
    """

    experiment: Experiment
    store: Store
    arguments: Sequence[str]
    command: str
    options: Options = Options()
    cores: int | None = None
    jobs: int | None = None
    seeds_per_job: int | None = None
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    finished_before: int | None = None
    stop: StopRequest = field(default_factory=Stop)
    watch: Watch = field(default_factory=Watch)
