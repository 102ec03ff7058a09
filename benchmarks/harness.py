"""What the benchmarks share: timing in turns, ratios within a round, and the JSON that is written.

The speed of a shared machine changes from minute to minute. So contenders are timed in turns, round after round. A ratio compares
two calls of the same round; reported are its median over rounds, its smallest and its largest value.
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

from experiments.command import PathArgument
from rope_jax.study.provenance import cpu_model

Row = dict[str, Any]
PACKAGES = ("rope_jax", "jax", "jaxlib", "numpy")
INSTALL = "pip install '.[benchmark]'"


@dataclass(frozen=True, kw_only=True)
class Benchmark(abc.ABC):
    """One benchmark: its fields are the flags of its command.

    Attributes:
      out: the JSON file to write; None writes none.
      rounds: how often each contender is timed; the median counts.
    """

    out: PathArgument | None = None
    rounds: int = 11

    def __post_init__(self) -> None:
        require_positive(self, "rounds")

    @property
    @abc.abstractmethod
    def packages(self) -> tuple[str, ...]:
        """The packages besides PACKAGES whose versions matter."""

    @abc.abstractmethod
    def run(self, log: Callable[[str], None]) -> list[Row]:
        """Measures; `log` gets a line for each stage, and for each contender that is left out."""

    @abc.abstractmethod
    def table(self, rows: list[Row]) -> str:
        """The rows as a table, with a line about how to read it."""


def require_positive(benchmark: Benchmark, *names: str) -> None:
    """ValueError unless these fields are at least 1."""
    for name in names:
        if getattr(benchmark, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(benchmark, name)}")


def require_writable(path: Path) -> None:
    """ValueError if no file can be written at the path; makes its folder if it does not exist."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name a file, such as {path / 'benchmark.json'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written ({error.strerror}); name a file that can") from error


def why_missing(modules: Sequence[str]) -> str | None:
    """Imports modules; None if all can be imported, else the reason and the remedy."""
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
    """Times every contender once per round, in an order that moves on by one each round.

    Args:
      contenders: calls that return when their result is computed.
      rounds: how many rounds.
      clock: seconds.
      warm: make calls that are not timed: one of each contender at the start, which compiles, and one before each timed call,
        which removes the caches and threads of the previous contender. False times first calls.

    Returns:
      The seconds of each contender, round by round.
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
    """For each contender median_seconds, and over the rounds the median, smallest and largest ratio to the baseline."""
    rounded = {}
    for name, rounds in seconds.items():
        ratios = [one / base for one, base in zip(rounds, seconds[baseline], strict=True)]
        figures = {
            "median_seconds": statistics.median(rounds),
            "ratio": statistics.median(ratios),
            "min_ratio": min(ratios),
            "max_ratio": max(ratios),
        }
        rounded[name] = {key: float(f"{value:.5g}") for key, value in figures.items()}  # more digits are noise
    return rounded


ROUNDS = "median of {rounds} rounds. A ratio is of one round; in brackets the smallest and the largest."


def markdown(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A Markdown table whose cells are printed as they are."""
    return tabulate(lines, header, tablefmt="pipe", disable_numparse=True)


def ratio_text(row: Row) -> str:
    """The ratio of a row, with its range."""
    return f"{row['ratio']:.2f} ({row['min_ratio']:.2f}-{row['max_ratio']:.2f})"


@contextmanager
def programs_on_disk(folder: str | None) -> Iterator[None]:
    """Uses the folder as JAX's compilation cache; None uses no cache on disk."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def configure(values: dict[str, Any]) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    inside = {"jax_enable_compilation_cache": folder is not None, "jax_compilation_cache_dir": folder}
    outside = {name: jax.config.values[name] for name in inside}
    configure(inside)
    try:
        yield
    finally:
        configure(outside)


def cores() -> int:
    """How many cores this process may use; XLA's CPU client has a thread for each."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> Row:
    """The machine, without names of host or user."""
    import jax

    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": cores(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "device": f"{jax.default_backend()} ({jax.devices()[0].device_kind})",
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Python's version, and those of the packages that are installed."""
    installed = {"python": platform.python_version()}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def to_json(name: str, benchmark: Benchmark, rows: list[Row]) -> str:
    """The content of --out; each row is a line, so that a diff shows which rows changed."""
    head = {"benchmark": name, "machine": machine(), "versions": versions((*PACKAGES, *benchmark.packages))}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'
