"""Who made results: command, commit, versions, machine and devices."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rope_jax.study.serialization import to_json
from rope_jax.study.store import Session, Store

_PACKAGES = ("rope_jax", "jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint")


@dataclass(frozen=True, kw_only=True)
class Maker:
    """What the rows of a process say of it.

    Attributes:
      commit: of this code; "-dirty" behind it if the code was changed since; None outside a checkout.
      device: the kind of device, such as "cpu" or "NVIDIA H100"; of a CPU its model, which decides the last digits of results.
      exact: whether results are bit for bit those of any other company of seeds, as on CPUs, where a core runs one at a time.
    """

    commit: str | None
    device: str
    exact: bool

    def columns(self, together: int, devices_per_seed: int = 1) -> dict[str, Any]:
        """The columns of a row that was computed with so many seeds at once on a device, or with so many devices for the seed."""
        return {
            "commit": self.commit,
            "jax": importlib.metadata.version("jax"),
            "device": self.device,
            "together": None if self.exact else together,
            **({"devices_per_seed": devices_per_seed} if devices_per_seed > 1 else {}),
        }


def new_session(store: Store, command: str, experiment: Any, devices: Sequence[str]) -> Session:
    """A session of this process: command, date (UTC), commit, versions, machine, devices, and the experiment with all options."""
    now = datetime.now(UTC)
    record = {
        "command": command,
        "date": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {
            "host": platform.node(),
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "architecture": platform.machine(),
        },
        "devices": list(devices),
        "experiment": to_json(experiment),
    }
    # the random part tells processes of equal names apart, as on two hosts, and clocks that were set back
    name = f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{secrets.token_hex(3)}"
    return Session(store.path / "sessions" / f"{name}.jsonl", record)


def cpu_model() -> str:
    """The name of the CPU. Results beyond the training length depend on it, since it decides the order of summation."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def commit() -> str | None:
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
