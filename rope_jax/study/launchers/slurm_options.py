"""Options of SLURM."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Placeholder."""

    partition: str | None = None
