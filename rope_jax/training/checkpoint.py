"""Training states on disk, by Orbax: checkpoint/<step>, one at a time. A killed write leaves the last whole one in place."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from rope_jax.study.config import Cell
from rope_jax.study.store import DamagedError
from rope_jax.training.devices import replica_sharding
from rope_jax.training.train import TrainState, init_replicas


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


def load(folder: Path, cell: Cell) -> TrainState | None:
    """Reads the last whole checkpoint of a cell.

    Args:
      folder: as given to `save`.
      cell: what was trained.

    Returns:
      The state, its replica axis laid out over the devices there are now; None if there is no checkpoint.

    Raises:
      DamagedError: the checkpoint cannot be read.
    """
    step = latest_step(folder)
    if step is None:
        return None
    replicas = len(cell.seeds)
    sharding = replica_sharding(replicas)
    like = jax.eval_shape(lambda: init_replicas(jnp.arange(replicas, dtype=jnp.uint32), cell=cell))
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), like)
    path = folder.resolve() / str(step)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path, target)
    except Exception as error:  # Orbax raises errors of many kinds
        raise DamagedError(
            f"checkpoint {path} cannot be read ({type(error).__name__}); delete it to train that cell again"
        ) from error
