"""Several processes that are one program: the same numbers as one process with as many devices, written once.

They meet over the loopback and add up with gloo.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import one_program
from rope_jax.training import processes

ROOT = Path(__file__).parents[2]
CONFIG = """
import rope_jax as rj
from rope_jax.optimizers import WarmupCosine
from rope_jax.study.config import Experiment, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

def experiment():
    return Experiment(
        name="toy",
        tasks=(Copy(alphabet=4),),
        methods=(Method(encoder=rj.RoPE()), Method(encoder=rj.Learned(max_length=32))),
        model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=8, batch_size=4, max_length=3, schedule=WarmupCosine(warmup_steps=2)),
        evaluate=EvaluateConfig(lengths=(2, 5), examples=16),
        seeds=(0, 1),
    )
"""


def run_all(*commands, env=None):
    """Runs commands at once; what each wrote to standard error."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    started = [subprocess.Popen([sys.executable, *command], cwd=ROOT, text=True, env=env, **streams) for command in commands]
    written = [each.communicate()[1] for each in started]
    assert [each.returncode for each in started] == [0] * len(started), written
    return written


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


@pytest.mark.slow
def test_two_processes_of_two_devices_train_as_one_process_of_four(tmp_path):
    """Seeds on devices of their own bit for bit; a seed on two devices up to rounding. With all of XLA's optimisations."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    found = {}
    for devices_per_seed in (1, 2):
        folders = [tmp_path / f"{count}-{devices_per_seed}" for count in (1, 2)]
        one, two = ((one_program.__file__, each, str(devices_per_seed), "3,5,7") for each in ("4", "2"))
        run_all((*one, folders[0]), env=environment)
        program = (f"127.0.0.1:{free_port()}", "2")
        run_all(*((*two, folders[1], *program, process) for process in ("0", "1")), env=environment)
        found[devices_per_seed] = [json.loads((folder / "found.json").read_text()) for folder in folders]
    one, two = found[1]
    assert one == two
    for split, tolerance in ((found[2], 1e-6), ([one, found[2][0]], 1e-4)):
        params = [np.array(each["params"]) for each in split]
        assert np.abs(params[0] - params[1]).max() <= tolerance * np.abs(params[0]).max()
        np.testing.assert_allclose(*(each["measured"] for each in split), atol=0.05)


@pytest.mark.slow
def test_the_command_writes_the_same_rows_from_two_processes(tmp_path):
    """Of several trainings, one after the other, and with one writer."""
    config = tmp_path / "toy.py"
    config.write_text(CONFIG)
    command = ("-m", "experiments.cell", str(config), "--cores", "2", "--out")
    program = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--process-id")
    run_all((*command, str(tmp_path / "one")))
    _, silent = run_all(*((*command, str(tmp_path / "two"), *program, process) for process in ("0", "1")))
    rows = [
        {path.relative_to(folder): path.read_bytes() for path in folder.glob("trainings/*/rows-*.jsonl")}
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]
    assert len(list((tmp_path / "two" / "sessions").iterdir())) == 1
    assert "finished" not in silent


def test_what_is_missing_to_meet_is_named():
    for given in (("host:1",), ("host:1", 2), ("slurm", 2, 0), ("slurm", None, 0)):
        with pytest.raises(ValueError, match="coordinator, num_processes and process_id must be given together, or"):
            processes.initialize(*given)
