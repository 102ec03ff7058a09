"""Small functions of arrays: ranks, pairs of queries and keys, dtypes."""

import jax
import jax.numpy as jnp


def leading(x: jax.Array, rank: int) -> jax.Array:
    """x with ones put in front up to `rank` axes."""
    return jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def pairwise(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """query [..., Tq] and key [..., Tk] as [..., Tq, 1] and [..., 1, Tk] of one rank, for a value of every pair."""
    query, key = jnp.expand_dims(query, -1), jnp.expand_dims(key, -2)
    rank = max(query.ndim, key.ndim)
    return leading(query, rank), leading(key, rank)


def wide(x: jax.Array) -> jax.Array:
    """Positions in a type that holds their differences: int32, or float32 for real ones."""
    return x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)


def heads_alike(q: jax.Array, k: jax.Array) -> jax.Array:
    """k, [..., Tk, Hk, D], with as many heads as q: a key head serves H / Hk query heads in turn (grouped-query attention)."""
    heads, groups = q.shape[-2], k.shape[-2]
    if heads % groups:
        raise ValueError(f"k has {groups} heads, which do not divide the {heads} of q; repeat or drop heads first")
    return k if heads == groups else jnp.repeat(k, heads // groups, axis=-2)
