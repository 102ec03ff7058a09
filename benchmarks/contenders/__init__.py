"""Other implementations that the benchmarks compare this package with."""
