"""Small functions of arrays: ranks, pairs of queries and keys, dtypes."""

import jax
import jax.numpy as jnp


def leading(x: jax.Array, rank: int) -> jax.Array:
    """x reshaped to `rank` axes by leading axes of length 1."""
    return jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def pairwise(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """query, [..., Tq], and key, [..., Tk], as [..., Tq, 1] and [..., 1, Tk] of the same rank."""
    query, key = jnp.expand_dims(query, -1), jnp.expand_dims(key, -2)
    rank = max(query.ndim, key.ndim)
    return leading(query, rank), leading(key, rank)


def wide(x: jax.Array) -> jax.Array:
    """Positions in a dtype that holds their differences: int32, or float32 for real positions."""
    return x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)


def with_query_heads(q: jax.Array, k: jax.Array) -> jax.Array:
    """k, [..., Tk, Hk, D], with as many heads as q: each key head is repeated H / Hk times (grouped-query attention)."""
    heads, groups = q.shape[-2], k.shape[-2]
    if heads % groups:
        raise ValueError(f"the {heads} heads of q must be a multiple of the {groups} heads of k; repeat or drop heads first")
    return k if heads == groups else jnp.repeat(k, heads // groups, axis=-2)
