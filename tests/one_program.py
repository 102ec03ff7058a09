"""Writes FOLDER/found.json: what seeds train to, in one process or several that are one program. A test runs it in processes.

python one_program.py DEVICES DEVICES_PER_SEED SEED,SEED,... FOLDER [COORDINATOR PROCESSES PROCESS]

DEVICES are those of a process.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

import same_numbers
from rope_jax import RoPE
from rope_jax.policies import Randomized
from rope_jax.study.config import Method
from rope_jax.training import checkpoint, devices, processes, train
from rope_jax.training.evaluate import evaluate


def numbers(cell, devices_per_seed, folder):
    """The parameters and measurements of all seeds, after half of training, a checkpoint, and the other half."""
    folders = [folder / str(seed) for seed in cell.seeds]
    state = None
    for end in (cell.train.steps // 2, cell.train.steps):
        wanted = lambda step, end=end: processes.is_main() and step == end  # noqa: E731
        for now in train.fit(cell, state, wanted=wanted, devices_per_seed=devices_per_seed):
            if now.step == end:
                checkpoint.save(folders, now.state)
                state = checkpoint.load(folders, cell, devices_per_seed=devices_per_seed)
                break
    found = evaluate(cell, state.params, processes.fetch(state.diverged_at), devices_per_seed=devices_per_seed)
    measured = [[row["content_error"], row["token_accuracy"]] for rows in found for row in rows]
    state = processes.fetch(state)
    params = np.concatenate([x.reshape(len(cell.seeds), -1) for x in jax.tree.leaves(state.params)], axis=1)
    return {"digest": same_numbers.digest(state), "params": params.tolist(), "measured": measured}


def main(device_count, devices_per_seed, seeds, folder, *program):
    if program:
        coordinator, count, process = program
        processes.initialize(coordinator, int(count), int(process))
    devices.configure(cores=int(device_count))
    assert processes.from_main({"process": jax.process_index()}) == {"process": 0}
    train.chunk_size = lambda seconds, left: 1
    [cell, *_] = same_numbers.cells(tuple(int(seed) for seed in seeds.split(",")))
    cell = replace(  # smaller, since several processes compile it at once
        cell,
        method=Method(encoder=RoPE(learn_base=True), policy=Randomized(max_position=60)),
        model=replace(cell.model, num_layers=1),
        train=replace(cell.train, steps=6),
        evaluate=replace(cell.evaluate, lengths=(3, 9)),
    )
    found = numbers(cell, int(devices_per_seed), Path(folder))
    if processes.is_main():
        (Path(folder) / "found.json").write_text(json.dumps(found))
    processes.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
