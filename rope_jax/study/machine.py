"""What the machine has: memory and arithmetic, as far as the operating system and JAX tell."""

import os
import sys
from pathlib import Path

import jax

from rope_jax.model import block_sizes

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# more than the fastest of today reach in matrix products: a time from these rates is too short, never too long
CPU_OPERATIONS_PER_SECOND_AND_CORE = 4e11
ACCELERATOR_OPERATIONS_PER_SECOND = 5e15


def memory_bytes() -> int | None:
    """The memory of a device: of the machine for CPUs, which share it, else of the first accelerator; None if it is unknown."""
    if block_sizes.on_cpu():
        return min((limit for limit in (_physical_bytes(), *_group_limits()) if limit is not None), default=None)
    return block_sizes.device_memory()


def peak_bytes() -> int | None:
    """The most memory that this process has had so far: of the first accelerator or, on CPUs, of the process; None if unknown."""
    if block_sizes.on_cpu():
        if resource is None:
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def operations_per_second(devices: int) -> float:
    """An upper limit of the floating-point operations per second of that many devices."""
    if block_sizes.on_cpu():
        return CPU_OPERATIONS_PER_SECOND_AND_CORE * (os.cpu_count() or 1)
    return ACCELERATOR_OPERATIONS_PER_SECOND * devices


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _group_limits(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The memory limits of the control groups of this process, as containers and schedulers set them."""
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # the second version, one tree for everything
            tree, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            tree, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = tree / group.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(tree) and (file := folder / name).is_file():
                text = file.read_text(encoding="utf-8").strip()
                limits += [int(text)] if text.isdigit() else []  # "max" is no limit
    return limits
