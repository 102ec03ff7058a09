"""Converts a folder of an earlier version, which held one experiment (run.json, rows.jsonl), into the folder of a study.

    python -m experiments.convert out/old --out out/new
    python -m experiments.convert out/old --out out/new --config mine.py

Rows are taken over; checkpoints are not. Name the config if the experiment has classes of its own. `python -m
experiments.compare` then writes the report, and runs what the config requests besides.
"""

import argparse

from experiments import command
from experiments.cell import opened
from experiments.cli import load_module, refusing
from rope_jax.study.convert import convert


def main(arguments: list[str]) -> None:
    """The command; `arguments` as in sys.argv[1:]."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=command.path, metavar="OLD", help="the folder of an earlier version; it is not changed")
    parser.add_argument("--out", type=command.path, metavar="DIR", required=True, help="the folder of the study")
    parser.add_argument("--config", type=command.path, metavar="CONFIG.py", help="a file that defines classes of the experiment")
    given = parser.parse_args(arguments)
    with refusing(), command.failing(lambda: ""):
        if given.config is not None:
            load_module(given.config, "config")
        filed = convert(given.old, opened(given.out))
    command.show(f"{filed} rows of {given.old} are in {given.out}", f"{given.out} is written")


if __name__ == "__main__":
    command.run(main)
