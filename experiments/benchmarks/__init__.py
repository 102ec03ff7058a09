"""The benchmarks, one a file: name on the command line -> its flags, and how it is run."""

from experiments.benchmarks.harness import Benchmark
from experiments.benchmarks.rotate import RotateBenchmark

BENCHMARKS: dict[str, type[Benchmark]] = {
    "rotate": RotateBenchmark,
}
