"""Prints the digests of what each seed of some cells trains to and measures, as JSON. A test runs it in processes of its own.

python same_numbers.py DEVICES SEED,SEED,... [STEP]    with STEP, training stops there, and goes on from a checkpoint
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import rope_jax as rj
from rope_jax.policies import Randomized
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy
from rope_jax.training import checkpoint, devices, train
from rope_jax.training.evaluate import evaluate

METHODS = (
    Method(encoder=rj.Compose(rj.RoPE(learn_base=True), rj.Fire()), policy=Randomized(max_position=60)),
    Method(encoder=rj.Learned(max_length=40)),
    Method(encoder=rj.RoPE(scaling=rj.DynamicNTK(original_length=4))),
)


def cells(seeds: tuple[int, ...]) -> list[Cell]:
    """One for each method; the first with dropout."""
    return [
        Cell(
            task=Copy(alphabet=6),
            method=method,
            model=ModelConfig(num_layers=2, width=32, num_heads=2, mlp_factor=2),
            train=TrainConfig(steps=12, batch_size=12, max_length=6, dropout=0.0 if number else 0.2),
            evaluate=EvaluateConfig(lengths=(3, 9, 17), examples=24),
            seeds=seeds,
        )
        for number, method in enumerate(METHODS)
    ]


def digest(tree: object) -> str:
    """The SHA-256 of all arrays of a tree."""
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))).hexdigest()


def numbers(cell: Cell, stop: int | None = None) -> dict[int, dict[str, object]]:
    """For each seed: the digest of its state at the end, its losses, and what was measured of it."""
    losses: dict[int, list[float]] = {seed: [] for seed in cell.seeds}
    state = None
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(seed) for seed in cell.seeds]
        for end in (stop, cell.train.steps):
            for now in train.fit(cell, state, wanted=lambda step, end=end: step == end) if end else ():
                for seed, loss in zip(cell.seeds, now.losses.tolist(), strict=True):
                    losses[seed].append(loss)
                if now.step == end:
                    checkpoint.save(folders, now.state)
                    state = checkpoint.load(folders, cell)
                    break
    rows = [row for rows in evaluate(cell, state.params, np.asarray(state.diverged_at)) for row in rows]
    columns = ("length", "exact_match", "token_accuracy", "content_error")
    return {
        seed: {
            "state": digest(jax.tree.map(lambda x, i=i: x[i], state)),
            "losses": losses[seed],
            "measured": [[row[name] for name in columns] for row in rows if row["seed"] == seed],
        }
        for i, seed in enumerate(cell.seeds)
    }


def main(device_count: str, seeds: str, stop: str = "0") -> None:
    devices.configure(cores=int(device_count))
    train.chunk_size = lambda seconds, left: 1  # so that losses are those of every step
    chosen = tuple(int(seed) for seed in seeds.split(","))
    print(json.dumps([numbers(cell, int(stop)) for cell in cells(chosen)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
