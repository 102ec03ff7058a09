"""The same seed gives the same numbers, bit for bit on CPUs: alone, with others, resumed, on any number of devices and cores."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

import same_numbers


def assert_each_seed_has_the_same(runs):
    """Runs are lists over the cells, of what `same_numbers.numbers` returns."""
    for of_cell in zip(*runs, strict=True):
        first = {seed: found for run in of_cell for seed, found in run.items()}
        for run in of_cell:
            for seed, found in run.items():
                assert found == first[seed], seed
        assert len({found["state"] for found in first.values()}) == len(first)


def test_a_seed_does_not_depend_on_the_seeds_beside_it(monkeypatch):
    monkeypatch.setattr("rope_jax.training.train.chunk_size", lambda seconds, left: 1)
    [cell, *_] = same_numbers.cells((0,))
    runs = [((1,), 0), ((1, 2), 0), ((5, 3, 1), 7)]
    assert_each_seed_has_the_same([[same_numbers.numbers(replace(cell, seeds=seeds), stop)] for seeds, stop in runs])


@pytest.mark.slow
def test_a_seed_does_not_depend_on_process_devices_and_cores():
    """With all of XLA's optimisations, which the other tests leave out."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    runs = []
    for arguments, cores in ((("1", "1"), 1), (("2", "3,1,2"), 2), (("4", "5,2,1,3"), 2), (("2", "2,1", "7"), 1)):
        affinity = sorted(os.sched_getaffinity(0))[:cores]
        command = [sys.executable, same_numbers.__file__, *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            preexec_fn=lambda affinity=affinity: os.sched_setaffinity(0, affinity),
        )
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    assert_each_seed_has_the_same(runs)
