"""Entry points: parse, call, write. `python -m experiments.compare --help`."""
