"""Training states on disk, by Orbax: checkpoint/<step>, one at a time. A killed write leaves the last whole one in place."""

import shutil
from pathlib import Path

import jax
import orbax.checkpoint as ocp

from rope_jax.devices import replica_sharding
from rope_jax.train import TrainState


def save(folder: Path, state: TrainState) -> None:
    """Writes folder/<step>, then removes older ones."""
    step = int(state.step[0])
    target = folder.resolve() / str(step)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(target, state, force=True)
    for other in folder.iterdir():  # older ones, and what a killed write left
        if other.name != target.name:
            shutil.rmtree(other)


def latest_step(folder: Path) -> int | None:
    """The step of the last whole checkpoint, or None."""
    steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return max(steps, default=None)


def restore(folder: Path, like: TrainState) -> TrainState:
    """Reads the last whole checkpoint.

    Args:
      folder: as given to `save`; `latest_step` must not be None.
      like: a state, or its jax.eval_shape, of the same structure.

    Returns:
      The state, its replica axis laid out over the devices there are now.
    """
    replicas = like.step.shape[0]
    sharding = replica_sharding(replicas)
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), like)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder.resolve() / str(latest_step(folder)), target)
