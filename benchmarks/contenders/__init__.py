"""Other implementations that the benchmarks compare with."""
