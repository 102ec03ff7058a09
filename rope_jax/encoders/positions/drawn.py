"""Positions that are drawn, for the unpadded length of each example.

The same key and length give the same positions with any padding. Entries past the length of an example are in range and have no
meaning. Arrays are int32 [..., T] unless a docstring says otherwise.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .._internal import random
from .._internal.inputs import integers, known, real, whole

__all__ = ["pose", "random_float", "random_offset", "randomized"]


def random_offset(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int) -> jax.Array:
    """One uniform offset for each example, so that all rows of a learned table are trained.

    Args:
      key: a random key of any generator; draws are those of threefry2x32 (see `_internal.random`).
      lengths: int [...], the unpadded length of each example; at most max_position.
      size: T, the padded length.
      max_position: positions are from 0 to max_position - 1.

    Returns:
      int32 [..., size]; past the length of an example, positions go on up to the largest one.

    Raises:
      ValueError: max_position is below the length of an example (where lengths are traced: below the padded length), an example
        is longer than the padded length, or lengths are not integers.
    """
    lengths = _require_room(lengths, size, max_position)
    offset = random.randint(key, lengths.shape, 0, jnp.maximum(max_position - lengths, 0) + 1)
    offset = jnp.expand_dims(offset, -1)
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*lengths.shape, size))
    return offset + jnp.minimum(index, max_position - 1 - offset)  # the sum of a large index would overflow


def randomized(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int) -> jax.Array:
    """A sorted random subset of 0 .. max_position - 1 for each example (Ruoss et al. 2023, arXiv:2305.16843, section 3).

    Args and result as in `random_offset`.
    """
    lengths = _require_room(lengths, size, max_position)
    drawn = random.uniform(key, (*lengths.shape, max_position))
    # the indices of the `size` largest draws: a subset in random order
    _, largest = jax.lax.top_k(drawn, min(size, max_position))
    kept = jnp.broadcast_to(jnp.arange(largest.shape[-1], dtype=jnp.int32), largest.shape) < jnp.expand_dims(lengths, -1)
    subset = jnp.sort(jnp.where(kept, largest.astype(jnp.int32), max_position - 1), axis=-1)
    filled = jnp.repeat(subset[..., -1:], size - subset.shape[-1], axis=-1)
    return jnp.concatenate([subset, filled], axis=-1)


def random_float(key: jax.Array, lengths: jax.Array, size: int, *, max_position: float) -> jax.Array:
    """Sorted uniform reals in [0, max_position), drawn for each example (arXiv:2602.14050).

    Args and result as in `random_offset`, but float32.
    """
    max_position = real("random_float max_position", max_position)
    lengths = _require_lengths(lengths, size)
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*lengths.shape, size))
    # every token has its own key, so that padding changes no draw
    each = jax.vmap(lambda key: random.uniform(key, lengths.shape))(random.keys_of(key, size))
    drawn = jnp.moveaxis(each, 0, -1)
    return max_position * jnp.sort(jnp.where(index < jnp.expand_dims(lengths, -1), drawn, jnp.float32(1 - 2**-24)), axis=-1)


def pose(key: jax.Array, lengths: jax.Array, size: int, *, max_position: int, chunks: int = 2) -> jax.Array:
    """Chunks of an example with random skips between them (Zhu et al. 2024, arXiv:2309.10400, section 3.2).

    The first chunk begins at position 0. Where the others begin in the example is uniform, and so is what is skipped before them.

    Args:
      key, lengths, size, max_position: as in `random_offset`.
      chunks: how many chunks; the paper has 2.
    """
    chunks = whole("pose chunks", chunks, lowest=1, hint="the paper has 2")
    lengths = _require_room(lengths, size, max_position)
    cut_key, skip_key = random.split(key, 2)
    shape = (*lengths.shape, chunks - 1)
    cuts = jnp.sort(random.randint(cut_key, shape, 1, jnp.maximum(jnp.expand_dims(lengths, -1), 2)), axis=-1)
    skips = jnp.sort(random.randint(skip_key, shape, 0, jnp.expand_dims(jnp.maximum(max_position - lengths, 0), -1) + 1), -1)
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*lengths.shape, size))
    passed = jnp.expand_dims(index, -1) >= jnp.expand_dims(cuts, -2)
    skipped = jnp.max(jnp.where(passed, jnp.expand_dims(skips, -2), 0), axis=-1, initial=0)
    return skipped + jnp.minimum(index, max_position - 1 - skipped)


def _require_room(lengths: jax.Array, size: int, max_position: int) -> jax.Array:
    """The lengths as int32; raises ValueError if max_position is below one of them, or too large for int32."""
    lengths = _require_lengths(lengths, size)
    whole("max_position", max_position)
    values = known(lengths)
    traced = values is None
    longest = size if values is None else int(np.max(values, initial=0))
    if max_position < max(longest, 1):
        what = "the padded length" if traced else "an example of length"
        raise ValueError(f"max_position {max_position} is below {what} {longest}; raise it to that")
    return lengths


def _require_lengths(lengths: jax.Array, size: int) -> jax.Array:
    """The lengths as int32; raises ValueError if they are not integers, negative, or above the padded length."""
    whole("size", size, lowest=0, hint="it is the padded length")
    lengths = integers("lengths", lengths, lowest=0, hint="they count tokens")
    values = known(lengths)
    if values is not None and np.max(values, initial=0) > size:
        raise ValueError(f"size {size} is below an example of length {np.max(values)}; it is the padded length")
    return lengths.astype(jnp.int32)
