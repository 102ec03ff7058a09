"""Measures how fast this package is, beside other implementations and other libraries, all in one run and in turns.

    python -m benchmarks rotate --out rotate.json

The name of a benchmark comes first, then its flags (`python -m benchmarks rotate --help` lists them). Other libraries take part
if they are installed: pip install '.[benchmark]'.
"""

import sys

import tyro

from benchmarks import BENCHMARKS, harness
from experiments import command
from experiments.cli import perhaps, refusing
from experiments.interrupt import interruptible
from rope_jax.study import store
from rope_jax.training import devices

_USAGE = "usage: python -m benchmarks {" + ",".join(BENCHMARKS) + "} [--out FILE.json ...]"


def parse(arguments: list[str]) -> harness.Benchmark:
    """The benchmark of a command line; ValueError or exit 2 if a name or a value is wrong."""
    name, *flags = arguments
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {name}{perhaps(name, BENCHMARKS)}; there are {', '.join(BENCHMARKS)}")
    benchmark = tyro.cli(BENCHMARKS[name], args=flags, prog=f"python -m benchmarks {name}")
    if benchmark.out is not None:
        harness.require_writable(benchmark.out)
    return benchmark


def main(arguments: list[str]) -> None:
    """The command; `arguments` as in sys.argv[1:]."""
    if not arguments or arguments[0].startswith("-"):
        wants_help = bool({"-h", "--help"} & set(arguments))
        print(*([__doc__] if wants_help else []), _USAGE, sep="\n", file=sys.stdout if wants_help else sys.stderr)
        sys.exit(0 if wants_help else 2)
    with interruptible() as interrupt, command.failing(lambda: "; no file is written"):
        interrupt.state = lambda: "; no file is written"
        with refusing():
            benchmark = parse(arguments)
        with refusing(devices.NoDevicesError):
            rows = benchmark.run(command.remark)
        if benchmark.out is not None:
            store.write_whole(benchmark.out, harness.to_json(arguments[0], benchmark, rows))
    complete = f"{benchmark.out} is written" if benchmark.out else "no file was requested: --out FILE.json writes the rows"
    command.show(benchmark.table(rows), complete)


if __name__ == "__main__":
    command.run(main)
