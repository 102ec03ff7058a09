"""How much is worked on at once, by device and shape: the one place where block sizes are chosen.

On a CPU a piece of work should stay in the cache of a core; an accelerator wants as much at once as memory allows. What is cut
into pieces is the same up to the order of summation.
"""

from typing import Any

import jax
import jax.numpy as jnp

CACHE_BYTES = 2**20  # of one core: the second level of most servers
ACCELERATOR_BYTES = 2**26  # for each replica
WHOLE = 128  # so many queries are one block
QUERY_BLOCK = 64  # of more, on a CPU
BUCKETS = 4  # each compiles the model anew
SECTIONS = 4  # 4 compute 5/8 of all scores where 1/2 is seen, and compile 4 programs


def on_cpu() -> bool:
    """Whether programs run on a CPU unless told otherwise."""
    return jax.default_backend() == "cpu"


def rows(length: int, *, hidden: int, num_heads: int) -> int:
    """How many examples of `length` input positions go through a model at once: as many as its widest activations allow.

    Args:
      length: input positions.
      hidden: features of the widest layer.
      num_heads: attention heads.
    """
    widest = 4 * length * max(hidden, num_heads * min(length, WHOLE))
    return max(1, (CACHE_BYTES if on_cpu() else ACCELERATOR_BYTES) // widest)


def edges(shortest: int, longest: int) -> tuple[int, ...]:
    """The lengths that examples of `shortest` to `longest` symbols are padded to: BUCKETS equal steps, or fewer of 3 symbols."""
    span = longest - shortest + 1
    count = max(1, min(BUCKETS, span // 3))
    return tuple(shortest - 1 + -(-span * part // count) for part in range(1, count + 1))


def rows_a_bucket(examples: int, buckets: int) -> int:
    """How many examples a piece has where examples of all lengths are sorted, so that the pieces fall into the buckets."""
    return -(-examples // (2 * buckets)) if on_cpu() else examples


def query_block(length: int, keys: int, heads: int) -> int:
    """How many of `length` queries attend to so many keys at once; `heads` are those of all examples together."""
    if on_cpu():
        return length if length <= WHOLE else QUERY_BLOCK
    return max(WHOLE, ACCELERATOR_BYTES // (4 * keys * heads))


def sections(length: int, block: int) -> list[int]:
    """Where up to SECTIONS parts of `length` queries end, each of whole blocks."""
    blocks = -(-length // block)
    count = max(1, min(SECTIONS, blocks, length // QUERY_BLOCK))  # a short text is not worth compiling several
    return [min(length, -(-blocks * part // count) * block) for part in range(1, count + 1)]


def cut(tree: Any, rows: int) -> tuple[Any, jax.Array]:
    """Cuts a batch into equal pieces of at most `rows` examples.

    Args:
      tree: arrays [B, ...].
      rows: examples a piece.

    Returns:
      The arrays as [pieces, rows, ...], filled up with copies of the last example; and which examples are real, bool
      [pieces, rows].
    """
    examples = jax.tree.leaves(tree)[0].shape[0]
    pieces = -(-examples // rows)
    rows = -(-examples // pieces)
    filling = pieces * rows - examples

    def one(x: jax.Array) -> jax.Array:
        filled = jnp.concatenate([x, *[x[-1:]] * filling])
        return filled.reshape(pieces, rows, *x.shape[1:])

    return jax.tree.map(one, tree), jnp.arange(pieces * rows).reshape(pieces, rows) < examples
