"""Processes that are one program, on one host or several: how they find each other, and what they agree on.

Each runs the same command on its own devices, and arrays may be spread over the devices of all. They must therefore launch the
same programs in the same order: what depends on a clock, a signal or a file is agreed on first, with `largest` and `from_main`.
One of them, the main process, writes all files, and all must be able to read them.
"""

import json
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SLURM = "slurm"


def initialize(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Makes this process one of several that are one program. Call it before `devices.configure`.

    Args:
      coordinator: address and port of the main process, such as "host:1234"; or "slurm", where SLURM's variables say all three.
      num_processes: how many processes there are.
      process_id: which of them this is; 0 is the main process.

    Raises:
      ValueError: a value is missing, or the processes did not come together.
    """
    from_slurm = coordinator == SLURM
    given = (num_processes, process_id)
    if from_slurm != (given == (None, None)) or (not from_slurm and None in given):
        raise ValueError(
            f"coordinator, num_processes and process_id must be given together, or coordinator={SLURM!r} alone, got "
            f"{coordinator!r}, {num_processes} and {process_id}"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from the command
    try:
        if from_slurm:
            jax.distributed.initialize(cluster_detection_method=SLURM)
        else:
            jax.distributed.initialize(coordinator, num_processes, process_id, cluster_detection_method="deactivate")
    except Exception as error:  # errors of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"the processes did not meet at {coordinator} ({reason}); start all of them, within minutes") from error


def leave() -> None:
    """Ends the program of several processes. All call it together, at the end of their common work."""
    if jax.process_count() > 1:
        wait()
        jax.distributed.shutdown()


def is_main() -> bool:
    """Whether this process writes the files: process 0."""
    return jax.process_index() == 0


def is_lost(error: Exception) -> bool:
    """Whether an error says that another process of this program is gone, so that it cannot go on."""
    return jax.process_count() > 1 and isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error)


def fetch(tree: Any) -> Any:
    """The arrays of a tree on the host, wherever their parts are. All processes call it together, and all get all of it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(lambda x: np.asarray(everywhere(x)), tree)  # one by one, for the memory of the devices


def everywhere(x: jax.Array) -> jax.Array:
    """An array that each process can read: itself, or where its parts are with several processes, a copy on all devices."""
    if x.is_fully_addressable or x.is_fully_replicated:
        return x
    return _copied(x, sharding=NamedSharding(x.sharding.mesh, P()))  # type: ignore[attr-defined]


@partial(jax.jit, static_argnames=("sharding",))
def _copied(x: jax.Array, *, sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def largest(value: float) -> float:
    """The largest of the values of all processes, which call it together: of yes and no, whether one says yes."""
    return value if jax.process_count() == 1 else float(np.max(multihost_utils.process_allgather(np.float32(value))))


def from_main(value: Any) -> Any:
    """The main process's value, made of what JSON can write. All processes call it together."""
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(largest(len(text) if is_main() else 0))
    mine = np.resize(text, size) if is_main() else np.zeros(size, np.uint8)
    return json.loads(bytes(multihost_utils.broadcast_one_to_all(mine)))


def wait() -> None:
    """Returns when all processes have called it."""
    largest(0)
