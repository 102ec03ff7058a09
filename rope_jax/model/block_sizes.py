"""Block sizes of attention, and the memory budgets that they and micro-batches keep, by device and shape.

On a CPU one block should stay in the cache of a core; an accelerator computes as much at once as its memory budget allows. Block
sizes change the order of summation, and nothing else in the results.
"""

import jax

CPU_CACHE_BYTES_PER_CORE = 2**20  # the second-level cache of most servers
ACCELERATOR_BYTES_PER_REPLICA = 2**26  # of the widest activation, or of a block of scores
MAX_QUERIES_IN_ONE_BLOCK = 128  # so many queries are not cut into blocks
CPU_QUERIES_PER_BLOCK = 64  # where there are more of them
MAX_SECTIONS = 4  # 4 compute 5/8 of all scores where 1/2 is visible, and compile 4 programs


def on_cpu() -> bool:
    """Whether programs run on a CPU by default."""
    return jax.default_backend() == "cpu"


def activation_bytes() -> int:
    """How many bytes the widest activation of a forward pass should have at most."""
    return CPU_CACHE_BYTES_PER_CORE if on_cpu() else ACCELERATOR_BYTES_PER_REPLICA


def query_block_size(num_queries: int, num_keys: int, num_heads: int) -> int:
    """How many queries attend to all keys at once.

    Args:
      num_queries: of one example.
      num_keys: of one example.
      num_heads: heads of all examples together.
    """
    if on_cpu():
        return num_queries if num_queries <= MAX_QUERIES_IN_ONE_BLOCK else CPU_QUERIES_PER_BLOCK
    return max(MAX_QUERIES_IN_ONE_BLOCK, ACCELERATOR_BYTES_PER_REPLICA // (4 * num_keys * num_heads))


def section_ends(num_queries: int, block_size: int) -> list[int]:
    """Where the sections of the queries end: up to MAX_SECTIONS of about equal size, each of whole blocks."""
    blocks = -(-num_queries // block_size)
    # short sections are not worth their compile time
    sections = max(1, min(MAX_SECTIONS, blocks, num_queries // CPU_QUERIES_PER_BLOCK))
    return [min(num_queries, -(-blocks * section // sections) * block_size) for section in range(1, sections + 1)]
