"""Random draws that no flag of JAX changes: every draw of the package is one of these.

JAX lets flags choose the default generator, how threefry numbers the values of an array, an offset of all seeds, and the default
dtypes. Here the generator is threefry2x32 in its partitionable form, and every dtype is named. A value then depends on its key
and its place alone. One flag is left: `jax_accurate_erf_inv`, of newer versions of JAX, changes the last bits of `normal`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

_GENERATOR = "threefry2x32"


@contextmanager
def fixed_form() -> Iterator[None]:
    """Draws of other code within are also those of threefry's partitionable form, if it gets a key of `key` and names dtypes."""
    with jax.threefry_partitionable(True):
        yield


def key(seed: Any) -> jax.Array:
    """The key that `jax.random.key(seed)` is by default; seed: an int from 0 to 2^32 - 1, or a uint32 or int32 array []."""
    low = jnp.asarray(seed, jnp.uint32)
    return jax.random.wrap_key_data(jnp.stack([jnp.zeros_like(low), low], axis=-1), impl=_GENERATOR)


def threefry(key: jax.Array) -> jax.Array:
    """A key of any generator, or its words as uint32 [..., 1], [..., 2] or [..., 4], as a key of threefry2x32.

    The words of an rbg key are those of the threefry key of the same seed, twice. `split` and `fold_in` of rbg keep it so.

    Raises:
      ValueError: it is neither.
    """
    dtype, words = getattr(key, "dtype", None), key
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        if str(jax.random.key_impl(key)) == _GENERATOR:
            return key
        words = jax.random.key_data(key)
    elif dtype != jnp.uint32 or key.ndim < 1 or key.shape[-1] not in (1, 2, 4):
        raise ValueError(f"key must be a random key, got {key!r}; make one with jax.random.key(seed)")
    if words.shape[-1] == 1:  # Philox
        words = jnp.concatenate([jnp.zeros_like(words), words], axis=-1)
    return jax.random.wrap_key_data(words[..., :2], impl=_GENERATOR)


def fold_in(key: jax.Array, data: Any) -> jax.Array:
    """A new key from a key [] and a number []."""
    return jax.random.fold_in(threefry(key), jnp.asarray(data, jnp.uint32))


def keys_of(key: jax.Array, count: int) -> jax.Array:
    """Keys [count]: number i is `fold_in(key, i)`, whatever the count is."""
    return jax.vmap(fold_in, in_axes=(None, 0))(threefry(key), jnp.arange(count, dtype=jnp.uint32))


def split(key: jax.Array, count: int) -> jax.Array:
    """Keys [count]."""
    with fixed_form():
        return jax.random.split(threefry(key), count)


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32 of a shape: 32 random bits each."""
    with fixed_form():
        return jax.random.bits(threefry(key), shape, jnp.uint32)


def uniform(key: jax.Array, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> jax.Array:
    """float32 of a shape, in [low, high)."""
    with fixed_form():
        return jax.random.uniform(threefry(key), shape, jnp.float32, low, high)


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """float32 of a shape, of mean 0 and standard deviation 1."""
    with fixed_form():
        return jax.random.normal(threefry(key), shape, jnp.float32)


def randint(key: jax.Array, shape: tuple[int, ...], low: Any, high: Any) -> jax.Array:
    """int32 of a shape, in low .. high - 1; the bounds broadcast to the shape."""
    with fixed_form():
        return jax.random.randint(threefry(key), shape, jnp.asarray(low, jnp.int32), jnp.asarray(high, jnp.int32), jnp.int32)


def permutation(key: jax.Array, count: int) -> jax.Array:
    """int32 [count]: 0 .. count - 1 in random order."""
    with fixed_form():
        return jax.random.permutation(threefry(key), jnp.arange(count, dtype=jnp.int32))
