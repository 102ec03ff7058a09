"""Where the program runs: the devices there are, how replicas lie on them, and the compilation cache."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import platformdirs
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rope_jax.model import sizes

AXIS = "replica"


def configure(*, replicas: int, compilation_cache: bool = True) -> None:
    """Sets JAX up, before its first array.

    Args:
      replicas: how many will run at once; on a CPU up to so many virtual devices are made, one a core.
      compilation_cache: whether compiled programs are kept on disk, in $JAX_COMPILATION_CACHE_DIR or the user's cache folder.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(RuntimeError):  # JAX runs already, in a notebook say: it keeps the devices it has
        jax.config.update("jax_num_cpu_devices", max(1, min(cores, replicas)))
    if not compilation_cache:
        jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.values["jax_compilation_cache_dir"]:
        folder = Path(platformdirs.user_cache_dir("rope_jax")) / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def names(replicas: int) -> list[str]:
    """The devices that so many replicas use, in words, such as "cpu:0 (cpu)"."""
    return [f"{device.platform}:{device.id} ({device.device_kind})" for device in replica_mesh(replicas).devices]


def replica_mesh(replicas: int) -> Mesh:
    """A mesh over as many devices as shorten the work: 10 replicas on 8 devices take two rounds, so 5 devices do."""
    devices = jax.devices()
    rounds = -(-replicas // len(devices))
    return Mesh(devices[: -(-replicas // rounds)], (AXIS,))


def replica_sharding(replicas: int) -> NamedSharding:
    """How arrays with a leading replica axis lie on the devices: split where the axis divides evenly, else whole on each."""
    mesh = replica_mesh(replicas)
    return NamedSharding(mesh, P(AXIS) if replicas % mesh.size == 0 else P())


def over_replicas(function: Callable[[Any, Any], Any], replicas: int) -> Callable[[Any, Any], Any]:
    """Runs function(own, shared) for every replica: `own` and the result have a leading replica axis, `shared` has none.

    The axis is split over the devices, filled up with copies of the last replica where it does not divide evenly. What remains
    on one device runs all at once on an accelerator, and one after the other on a CPU, where a batch over seeds gains nothing.
    """
    mesh = replica_mesh(replicas)
    filling = -replicas % mesh.size

    def local(own: Any, shared: Any) -> Any:
        if sizes.on_cpu():
            return jax.lax.map(lambda one: function(one, shared), own)
        return jax.vmap(function, in_axes=(0, None))(own, shared)

    # nothing is communicated between replicas, so there is nothing for check_vma to check
    split = jax.shard_map(local, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(AXIS), check_vma=False)

    def filled(own: Any, shared: Any) -> Any:
        own = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * filling]), own)
        out = jax.tree.map(lambda x: x[:replicas], split(own, shared))
        return jax.lax.with_sharding_constraint(out, replica_sharding(replicas))

    return filled if filling else split
