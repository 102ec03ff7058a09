"""Block sizes of attention, and the memory budgets that they and micro-batches keep, by device and shape.

On a CPU one block should stay in the cache of a core; an accelerator computes as much at once as its memory budget allows. Block
sizes change the order of summation, and nothing else in the results.
"""

import jax

CPU_CACHE_BYTES_PER_CORE = 2**20  # the second-level cache of most servers
ACCELERATOR_BYTES = 2**31  # more at once makes no accelerator faster
LAYER_SHARE_OF_MEMORY = 8  # 1/8, because a layer keeps about 6 arrays as large as the widest for the backward pass
MAX_QUERIES_IN_ONE_BLOCK = 128  # so many queries are not cut into blocks
CPU_QUERIES_PER_BLOCK = 64  # where there are more of them
MAX_SECTIONS = 4  # 4 compute 5/8 of all scores where 1/2 is visible, and compile 4 programs


def on_cpu() -> bool:
    """Whether programs run on a CPU by default."""
    return jax.default_backend() == "cpu"


def device_memory() -> int | None:
    """The bytes that a device has for programs; None if JAX does not know."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def activation_bytes(*, together: int = 1, kept_layers: int = 1) -> int:
    """How many bytes the widest activation of a forward pass, or a block of scores, should have at most.

    On a CPU that is the cache of a core, which computes one model at a time. On an accelerator it is a share of its memory.

    Args:
      together: how many models run at once on a device and share its budget.
      kept_layers: how many layers keep their activations at once, as all do for the backward pass.
    """
    if on_cpu():
        return CPU_CACHE_BYTES_PER_CORE
    memory = device_memory()
    of_device = ACCELERATOR_BYTES if memory is None else min(ACCELERATOR_BYTES, memory // (LAYER_SHARE_OF_MEMORY * kept_layers))
    return of_device // together


def query_block_size(num_queries: int, num_keys: int, num_heads: int, *, budget: int | None = None) -> int:
    """How many queries attend to all keys at once.

    Args:
      num_queries: of one example.
      num_keys: of one example.
      num_heads: heads of all examples together.
      budget: from `activation_bytes`; None is that of a model that has the device alone. On a CPU it does not matter.
    """
    if on_cpu():
        return num_queries if num_queries <= MAX_QUERIES_IN_ONE_BLOCK else CPU_QUERIES_PER_BLOCK
    budget = activation_bytes() if budget is None else budget
    return max(MAX_QUERIES_IN_ONE_BLOCK, budget // (4 * num_keys * num_heads))


def section_ends(num_queries: int, block_size: int) -> list[int]:
    """Where the sections of the queries end: up to MAX_SECTIONS of about equal size, each of whole blocks."""
    blocks = -(-num_queries // block_size)
    # short sections are not worth their compile time
    sections = max(1, min(MAX_SECTIONS, blocks, num_queries // CPU_QUERIES_PER_BLOCK))
    return [min(num_queries, -(-blocks * section // sections) * block_size) for section in range(1, sections + 1)]
