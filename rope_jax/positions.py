"""Positions as data: explicit arrays that every encoder reads, made apart from the encoders."""

import jax
import jax.numpy as jnp


def contiguous(length: int, *, offset: int | jax.Array = 0) -> jax.Array:
    """offset, offset + 1, ..., offset + length - 1.

    Args:
      length: how many, a Python int.
      offset: int [...], where to begin; may be traced; an array gives each example its own.

    Returns:
      int32 [..., length].

    Raises:
      ValueError: negative length, or an offset that is not of an integer dtype.
    """
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    if not jnp.issubdtype(jnp.result_type(offset), jnp.integer):
        raise ValueError(f"offset must be an int or of an integer dtype, got {offset!r}")
    start = jnp.expand_dims(jnp.asarray(offset, jnp.int32), -1)
    steps = jnp.arange(length, dtype=jnp.int32)
    return start + jnp.reshape(steps, (1,) * (start.ndim - 1) + (-1,))
