"""The benchmarks, one a file: name on the command line -> its flags, and how it is run."""

from experiments.benchmarks.attention import AttentionBenchmark
from experiments.benchmarks.compile import CompileBenchmark
from experiments.benchmarks.curve import CurveBenchmark
from experiments.benchmarks.harness import Benchmark
from experiments.benchmarks.replicas import ReplicasBenchmark
from experiments.benchmarks.rotate import RotateBenchmark
from experiments.benchmarks.step import StepBenchmark

BENCHMARKS: dict[str, type[Benchmark]] = {
    "step": StepBenchmark,
    "curve": CurveBenchmark,
    "replicas": ReplicasBenchmark,
    "compile": CompileBenchmark,
    "attention": AttentionBenchmark,
    "rotate": RotateBenchmark,
}
