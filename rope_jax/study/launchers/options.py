"""Options of launchers. Plain data: it is read before any device is touched."""

import re
from dataclasses import dataclass

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass
from rope_jax.study.settings import require

# [days-]hours:minutes:seconds in the forms that sbatch reads
_TIME = re.compile(r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+)(?::(?P<seconds>\d+))?)?|(?P<plain>\d+(?::\d+){0,2}))")
_NAME = re.compile(r"[\w.@+-]+(?:,[\w.@+-]+)*")
_MEMORY = re.compile(r"[1-9]\d*[KMGT]?")
_SHORTEST_MINUTES = 3  # the warning comes up to two minutes before the end
_OPTION = re.compile(r"([a-z][a-z-]+)(=[^\\]*)?")
_SET_BY_THE_SCRIPT = frozenset(
    (
        *("array", "requeue", "no-requeue", "output", "error", "open-mode", "signal", "chdir", "job-name", "dependency"),
        *("wrap", "parsable", "wait", "test-only"),
    )
)


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(TypedDataclass):
    """What a job of SLURM asks for. A value that is not given is the cluster's default.

    Attributes:
      partition: where jobs run, such as gpu, or several with commas; `sinfo` lists them.
      time: the time limit of a job, as sbatch reads it: minutes, hours:minutes:seconds, or days-hours. A job that reaches it
        saves its state and is queued again.
      gpus: GPUs of a job.
      cpus: CPU cores of a job.
      memory: memory of a job, such as 16G.
      throttle: how many jobs run at once at most.
      account: what the time is charged to.
      qos: the quality of service.
      extra: more options of sbatch, without their dashes, such as constraint=a100 exclusive.
    """

    partition: str | None = None
    time: str | None = None
    gpus: int = 0
    cpus: int = 2
    memory: str | None = None
    throttle: int | None = None
    account: str | None = None
    qos: str | None = None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.gpus >= 0, "slurm.gpus", self.gpus, "must not be negative")
        require(self.cpus >= 1, "slurm.cpus", self.cpus, "must be at least 1")
        require(self.throttle is None or self.throttle >= 1, "slurm.throttle", self.throttle, "must be at least 1")
        for field in ("partition", "account", "qos"):
            value = getattr(self, field)
            require(
                value is None or _NAME.fullmatch(value) is not None, f"slurm.{field}", value, "must be a name of the cluster's"
            )
        require(
            self.memory is None or _MEMORY.fullmatch(self.memory) is not None,
            "slurm.memory",
            self.memory,
            "must be a number of megabytes, or a number with K, M, G or T, such as 16G",
        )
        minutes = self.minutes
        require(
            minutes is None or minutes >= _SHORTEST_MINUTES,
            "slurm.time",
            self.time,
            f"must be at least {_SHORTEST_MINUTES} minutes, since a job is warned up to two minutes before its end",
        )
        for option in self.extra:
            match = _OPTION.fullmatch(option)
            if match is None or not option.isprintable():
                raise ValueError(
                    f"slurm.extra must hold long options of sbatch without their dashes, such as constraint=a100, got {option!r}"
                )
            if match[1] in _SET_BY_THE_SCRIPT:
                raise ValueError(f"slurm.extra must not hold {match[1]}, which the launcher sets itself; leave it out")

    @property
    def minutes(self) -> float | None:
        """The time limit in minutes; None if it is the cluster's."""
        if self.time is None:
            return None
        match = _TIME.fullmatch(self.time)
        if match is None:
            raise ValueError(
                "slurm.time must be minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or "
                f"days-hours:minutes:seconds, got {self.time!r}; 1-12 is a day and a half"
            )
        if match["plain"] is None:
            days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        else:
            parts = [int(part) for part in match["plain"].split(":")]
            days, (hours, minutes, seconds) = 0, parts if len(parts) == 3 else (0, *parts, 0)[:3]
        return (days * 24 + hours) * 60 + minutes + seconds / 60
