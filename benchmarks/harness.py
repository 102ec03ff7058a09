"""What the benchmarks share: timing in turns, ratios round by round, and the JSON that is written.

On a machine that others use as well, the speed changes from minute to minute. So contenders are timed in turns, round after
round, a ratio is that of two calls of one round, and what is reported is the median over rounds beside the smallest and largest.
"""

import abc
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

Row = dict[str, Any]
PACKAGES = ("rope_jax", "jax", "jaxlib", "numpy")
INSTALL = "pip install '.[benchmark]'"


@dataclass(frozen=True, kw_only=True)
class Benchmark(abc.ABC):
    """One benchmark: its fields are the flags of its command.

    Attributes:
      out: the JSON file to write; none if not given.
      rounds: how often each contender is timed; the median counts.
    """

    out: Path | None = None
    rounds: int = 11

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, got {self.rounds}")

    @property
    @abc.abstractmethod
    def packages(self) -> tuple[str, ...]:
        """The packages besides PACKAGES whose versions matter."""

    @abc.abstractmethod
    def run(self, say: Callable[[str], None]) -> list[Row]:
        """Measures; `say` takes a line about what is under way or left out."""

    @abc.abstractmethod
    def table(self, rows: list[Row]) -> str:
        """The rows for a reader, with how to read them."""


def require_writable(path: Path) -> None:
    """ValueError if no file can be written there; the folder is made if need be."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name a file, such as {path / 'benchmark.json'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written ({error.strerror}); name a file that can") from error


def why_missing(modules: Sequence[str]) -> str | None:
    """Imports modules; None if all are there, else what to tell the user."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            return f"not installed: {INSTALL}"
        except ImportError as error:
            return f"cannot be imported ({error}): {INSTALL}"
    return None


def interleaved(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm: bool = True,
) -> dict[str, list[float]]:
    """Times every contender once a round, in an order that moves on by one each round.

    Args:
      contenders: calls that return when their result is there.
      rounds: how many rounds.
      clock: seconds.
      warm: whether calls are made that are not counted; without, what is measured includes what a first call does.

    Returns:
      The seconds of each contender, round by round. Not counted are a first call of each, which compiles, and a call before each
      timed one, which clears caches and threads of the contender before.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for call in contenders.values() if warm else ():
        call()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if warm:
                contenders[name]()
            begin = clock()
            contenders[name]()
            seconds[name].append(clock() - begin)
    return seconds


def summary(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Row]:
    """Of each contender median_seconds, and the median, min_ratio and max_ratio over rounds of its ratio to the baseline."""
    found = {}
    for name, own in seconds.items():
        ratios = [mine / base for mine, base in zip(own, seconds[baseline], strict=True)]
        figures = {
            "median_seconds": statistics.median(own),
            "ratio": statistics.median(ratios),
            "min_ratio": min(ratios),
            "max_ratio": max(ratios),
        }
        found[name] = {key: float(f"{value:.5g}") for key, value in figures.items()}  # more digits are noise
    return found


ROUNDS = "median of {rounds} rounds. A ratio is of one round, in brackets the smallest and the largest."


def markdown(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A table whose cells stand as they are written."""
    return tabulate(lines, header, tablefmt="pipe", disable_numparse=True)


def ratio_text(row: Row) -> str:
    """The ratio of a row, with its range."""
    return f"{row['ratio']:.2f} ({row['min_ratio']:.2f}-{row['max_ratio']:.2f})"


@contextmanager
def programs_on_disk(folder: str | None) -> Iterator[None]:
    """Compiled programs are read from this folder and written there; None: they are neither read nor written."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def use(values: dict[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    now = {"jax_enable_compilation_cache": folder is not None, "jax_compilation_cache_dir": folder}
    before = {name: jax.config.values[name] for name in now}
    use(now)
    try:
        yield
    finally:
        use(before)


def cores() -> int:
    """How many cores this process may use; XLA's CPU client has a thread for each."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> Row:
    """Where it ran, without names of host or user."""
    import jax

    return {
        "cpu": _cpu(),
        "cores": cores(),
        "threads": cores(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "device": f"{jax.default_backend()} ({jax.devices()[0].device_kind})",
    }


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Python's version, and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def to_json(name: str, benchmark: Benchmark, rows: list[Row]) -> str:
    """The content of --out; one row a line, so that a diff shows which changed."""
    head = {"benchmark": name, "machine": machine(), "versions": versions((*PACKAGES, *benchmark.packages))}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
