"""Devices: how JAX is configured, how replicas and their batches are spread over devices, where compiled programs are cached.

The devices of a program are a mesh of two axes: along "replica" they compute different seeds, along "data" parts of a seed's
batch.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rope_jax.encoders._internal import random
from rope_jax.model import block_sizes

REPLICA, DATA = "replica", "data"
LEAST_CPU_DEVICES = 2  # see `replica_mesh`
# one core computes a replica: products that several cores share are summed in another order
ONE_CORE = {"xla_cpu_multi_thread_eigen": False}


class NoDevicesError(ValueError):
    """JAX has no devices to run on; the message says what to change."""


def kind() -> str:
    """The kind of the devices that programs run on: "cpu", or the name of the accelerator."""
    return jax.devices()[0].device_kind


def visible_accelerators() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them, without a look by JAX, which would take their memory.

    [] where there are none, or JAX_PLATFORMS leaves them out.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    known = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(known.iterdir())))] if known.is_dir() else []


def cores_granted() -> int:
    """How many cores this process may use: of its affinity, or fewer where SLURM grants fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(cores, max(1, int(granted))) if granted.isdecimal() else cores


def configure(*, cores: int | None = None, compilation_cache: bool = True) -> None:
    """Configures JAX. Call it before the first array is made.

    Args:
      cores: how many to use on a CPU, each as a virtual device; None uses those that are granted. There are two devices at least,
        which then share a core; see `replica_mesh`.
      compilation_cache: whether compiled programs are kept on disk, in $JAX_COMPILATION_CACHE_DIR or the user's cache folder.

    Raises:
      NoDevicesError: JAX finds no devices of the platforms that JAX_PLATFORMS names.
      ValueError: `cores` is below 1.
    """
    if cores is not None and cores < 1:
        raise ValueError(f"cores must be at least 1, got {cores}; leave it out to use those that are granted")
    with contextlib.suppress(RuntimeError):  # JAX already runs, as in a notebook, and keeps its devices
        jax.config.update("jax_num_cpu_devices", max(LEAST_CPU_DEVICES, cores or cores_granted()))
    if not compilation_cache:
        jax.config.update("jax_enable_compilation_cache", False)
    if not jax.config.values["jax_compilation_cache_dir"]:
        folder = Path(platformdirs.user_cache_dir("rope_jax")) / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    require()


def require() -> None:
    """Initialises the devices; raises NoDevicesError where that is impossible."""
    try:
        jax.devices()
    except Exception as error:  # a RuntimeError, or a bare AssertionError
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NoDevicesError(
            f"JAX finds no devices for JAX_PLATFORMS={jax.config.values['jax_platforms']} ({reason}); set it to a platform of "
            "this machine, such as cpu, or unset it"
        ) from error


@contextlib.contextmanager
def default_flags() -> Iterator[None]:
    """A context in which JAX computes in 32 bits and draws from its default generator, whatever flags the user has set.

    Training and evaluation call their compiled programs in it, so that no such flag changes their results. This holds for code
    of others as well: optimisers of optax, and tasks of the user that draw with `jax.random`.
    """
    with jax.enable_x64(False), jax.default_prng_impl("threefry2x32"), random.fixed_form():
        yield


def names() -> list[str]:
    """All devices, each as a string such as "cpu:0 (cpu)"."""
    return [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()]


def replica_mesh(replicas: int, devices_per_seed: int = 1) -> Mesh:
    """A mesh over the fewest devices that take the fewest rounds: 10 replicas on 8 devices take two rounds, as they do on 5.

    Every process gives as many of its devices. On a CPU these are two at least, if so many exist: XLA compiles a program for one
    device in other steps, which round otherwise, and a replica's results are not to depend on how many there are. Besides, it
    runs programs that use one device of a process in any order, and processes must communicate in the same order.

    Args:
      replicas: how many.
      devices_per_seed: how many devices compute each of them together.

    Raises:
      ValueError: the devices cannot be divided by `devices_per_seed`.
    """
    processes, everywhere = jax.process_count(), jax.device_count()
    if everywhere % devices_per_seed:
        raise ValueError(f"devices_per_seed must divide the number of devices, which is {everywhere}, got {devices_per_seed}")
    at_once = everywhere // devices_per_seed
    rounds = -(-replicas // at_once)
    least = LEAST_CPU_DEVICES * processes if block_sizes.on_cpu() else 1
    used = -(-replicas // rounds)
    while used < at_once and (used * devices_per_seed < least or used * devices_per_seed % processes):
        used += 1
    of_each = used * devices_per_seed // processes
    chosen = [device for process in range(processes) for device in jax.local_devices(process)[:of_each]]
    return Mesh(np.array(chosen).reshape(used, devices_per_seed), (REPLICA, DATA))


def together(replicas: int, devices_per_seed: int = 1) -> int:
    """How many replicas a device computes at once: one on a CPU, on an accelerator all of its replicas."""
    return 1 if block_sizes.on_cpu() else -(-replicas // replica_mesh(replicas, devices_per_seed).shape[REPLICA])


def replica_sharding(replicas: int, devices_per_seed: int = 1) -> NamedSharding:
    """The sharding of arrays with a leading replica axis: split over the devices if it divides evenly, otherwise replicated."""
    mesh = replica_mesh(replicas, devices_per_seed)
    return NamedSharding(mesh, P(REPLICA) if replicas % mesh.shape[REPLICA] == 0 else P())


def whole_sharding(replicas: int, devices_per_seed: int = 1) -> NamedSharding:
    """The sharding of arrays that all replicas share: a whole copy on each device."""
    return NamedSharding(replica_mesh(replicas, devices_per_seed), P())


def over_replicas(function: Callable[[Any, Any], Any], replicas: int, devices_per_seed: int = 1) -> Callable[[Any, Any], Any]:
    """Maps function(replica, shared) over replicas: the first argument and the result get a leading replica axis.

    The axis is split over the devices, filled up with copies of the last replica where it does not divide evenly. The replicas of
    one device are vmapped on an accelerator. On a CPU they run one after the other, and copies are not computed.

    Args:
      function: of one replica. Where several devices compute it together, each calls it, takes its part of the batch with
        `dealt`, and joins the results with `added_up`.
      replicas: how many.
      devices_per_seed: how many devices compute each of them together.
    """
    mesh = replica_mesh(replicas, devices_per_seed)
    groups = mesh.shape[REPLICA]
    missing = -replicas % groups

    def on_one_device(stacked: Any, shared: Any) -> Any:
        if block_sizes.on_cpu():
            rounds = (replicas + missing) // groups
            present = jnp.clip(replicas - rounds * jax.lax.axis_index(REPLICA), 0, rounds)
            return _one_by_one(function, present, stacked, shared)
        return jax.vmap(function, in_axes=(0, None))(stacked, shared)

    # nothing is communicated between replicas, and `added_up` gives all devices of one the same
    split = jax.shard_map(on_one_device, mesh=mesh, in_specs=(P(REPLICA), P()), out_specs=P(REPLICA), check_vma=False)

    def filled(stacked: Any, shared: Any) -> Any:
        stacked = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * missing]), stacked)
        out = jax.tree.map(lambda x: x[:replicas], split(stacked, shared))
        return jax.lax.with_sharding_constraint(out, replica_sharding(replicas, devices_per_seed))

    return filled if missing else split


def dealt(stacked: jax.Array, devices_per_seed: int) -> jax.Array:
    """Of what stands on a leading axis, the part of this device: every `devices_per_seed`-th; inside `over_replicas`."""
    if devices_per_seed == 1:
        return stacked
    rounds = stacked.reshape(-1, devices_per_seed, *stacked.shape[1:])
    return jax.lax.dynamic_index_in_dim(rounds, jax.lax.axis_index(DATA), axis=1, keepdims=False)


def added_up(results: Any, devices_per_seed: int) -> Any:
    """The sum of what the devices of a seed computed, on each of them; inside `over_replicas`."""
    return results if devices_per_seed == 1 else jax.lax.psum(results, DATA)


def _one_by_one(function: Callable[[Any, Any], Any], count: jax.Array, stacked: Any, shared: Any) -> Any:
    """The first `count` results of a map over a leading axis; zeros stand for the others.

    The compiler does not know `count`. It would drop a loop that it knows to run once, and then round otherwise.
    """

    once = jax.jit(function, inline=True)  # traced once, here and for the shapes of the results

    def take(index: jax.Array) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), stacked)

    def add(index: jax.Array, results: Any) -> Any:
        one = once(take(index), shared)
        return jax.tree.map(lambda all_results, x: jax.lax.dynamic_update_index_in_dim(all_results, x, index, 0), results, one)

    length = jax.tree.leaves(stacked)[0].shape[0]
    shapes = jax.eval_shape(once, jax.eval_shape(take, jax.ShapeDtypeStruct((), jnp.int32)), shared)
    return jax.lax.fori_loop(0, count, add, jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes))
