"""Training states on disk, by Orbax: one folder named after the step. A killed write leaves the last complete one in place."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from rope_jax.study.config import Cell
from rope_jax.training.devices import replica_sharding
from rope_jax.training.train import TrainState, init_state


class DamagedCheckpointError(ValueError):
    """A checkpoint cannot be read; the message names its path and what to do."""


def save(folder: Path, state: TrainState) -> None:
    """Writes folder/<step>, then removes older ones.

    Raises:
      OSError: it cannot be written, as on a full disk.
    """
    step = int(state.step[0])
    target = folder.resolve() / str(step)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(target, state, force=True)
    except ValueError as error:  # what Orbax makes of errors of its storage
        raise OSError(f"checkpoint {target} cannot be written ({str(error).rpartition(': ')[2]})") from error
    for other in folder.iterdir():  # older checkpoints, and what a killed write left
        if other.name != target.name:
            shutil.rmtree(other)


def latest_step(folder: Path) -> int | None:
    """The step of the last complete checkpoint, or None."""
    steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return max(steps, default=None)


def load(folder: Path, cell: Cell) -> TrainState | None:
    """Reads the last complete checkpoint of a cell.

    Args:
      folder: where `save` wrote it.
      cell: what was trained.

    Returns:
      The state, its replica axis sharded over the present devices; None if there is no checkpoint.

    Raises:
      DamagedCheckpointError: the checkpoint cannot be read.
    """
    step = latest_step(folder)
    if step is None:
        return None
    sharding = replica_sharding(len(cell.seeds))
    shapes = jax.eval_shape(jax.vmap(lambda seed: init_state(seed, cell)), jnp.arange(len(cell.seeds), dtype=jnp.uint32))
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
    path = folder.resolve() / str(step)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path, target)
    except Exception as error:  # Orbax raises errors of many kinds
        raise DamagedCheckpointError(
            f"checkpoint {path} cannot be read ({type(error).__name__}); delete it to train that cell again"
        ) from error
