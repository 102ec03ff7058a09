"""Benchmarks, one per file: the name on the command line -> its class, whose fields are the command's flags."""

import experiments  # first: Ctrl-C while the rest is imported
from benchmarks.attention import AttentionBenchmark
from benchmarks.compile import CompileBenchmark
from benchmarks.curve import CurveBenchmark
from benchmarks.harness import Benchmark
from benchmarks.replicas import ReplicasBenchmark
from benchmarks.rotate import RotateBenchmark
from benchmarks.step import StepBenchmark
from benchmarks.store import StoreBenchmark

BENCHMARKS: dict[str, type[Benchmark]] = {
    "step": StepBenchmark,
    "curve": CurveBenchmark,
    "replicas": ReplicasBenchmark,
    "compile": CompileBenchmark,
    "attention": AttentionBenchmark,
    "rotate": RotateBenchmark,
    "store": StoreBenchmark,
}
