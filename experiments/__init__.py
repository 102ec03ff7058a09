"""Entry points: parse, call, write. `python -m experiments.compare --help`."""

from experiments import interrupt, threads

if interrupt.stop_while_importing():  # `python -m` imports this package first, before what takes seconds
    threads.require_threads()
