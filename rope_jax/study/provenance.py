"""What ran an experiment: command, commit, versions, machine and devices."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rope_jax.study.config import Cell


def provenance(command: str, cells: Sequence[Cell], devices: Sequence[str]) -> dict[str, Any]:
    """Describes a session: command, date (UTC), commit of this code, versions, machine, devices, and the cells it is to run."""
    packages = ("rope_jax", "jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint")
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "architecture": platform.machine(),
        },
        "devices": list(devices),
        "cells": [cell.id for cell in cells],
    }


def cpu_model() -> str:
    """The name of the CPU. Results beyond the training length depend on it, since it decides the order of summation."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The git commit of this package's source, "-dirty" behind it if that was changed since; None outside a checkout."""

    def git(*command: str) -> str:
        here = Path(__file__).resolve()
        done = subprocess.run(["git", "-C", str(here.parent), *command], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie in somebody else's repository
        return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return None
