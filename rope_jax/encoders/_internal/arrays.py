"""Small functions of arrays: ranks, pairs of queries and keys, distances."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def leading(x: jax.Array, rank: int) -> jax.Array:
    """x reshaped to `rank` axes by leading axes of length 1."""
    return jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def pairwise(query: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """query, [..., Tq], and key, [..., Tk], as [..., Tq, 1] and [..., 1, Tk] of the same rank and dtype.

    Raises:
      ValueError: their leading axes do not fit.
    """
    batch_of(query.shape[:-1], key.shape[:-1])
    query, key = jnp.expand_dims(query, -1), jnp.expand_dims(key, -2)
    rank, dtype = max(query.ndim, key.ndim), _common_dtype(query.dtype, key.dtype)
    return leading(query, rank).astype(dtype), leading(key, rank).astype(dtype)


def _common_dtype(a: np.dtype, b: np.dtype) -> np.dtype:
    if a == b:
        return a
    if not (jnp.issubdtype(a, jnp.integer) and jnp.issubdtype(b, jnp.integer)):
        return np.dtype(np.float32)
    common = np.promote_types(a, b)
    return jax.dtypes.canonicalize_dtype(common if jnp.issubdtype(common, jnp.integer) else np.int64)


def distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """|a - b| without overflow: of integers, as the unsigned type of their width; of real numbers, in their dtype."""
    apart = jnp.maximum(a, b) - jnp.minimum(a, b)  # of integers, modulo the range of the dtype, which the unsigned type undoes
    return apart.astype(f"uint{8 * apart.dtype.itemsize}") if jnp.issubdtype(apart.dtype, jnp.integer) else apart


def difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """a - b as float32; integers are subtracted without rounding or overflow before."""
    size = distance(a, b).astype(jnp.float32)
    return jnp.where(a < b, -size, size)


def batch_of(*leads: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes of arrays that are used together; ValueError if they do not broadcast."""
    try:
        return jnp.broadcast_shapes(*leads)
    except ValueError as error:
        shapes = " and ".join(map(str, leads))
        raise ValueError(f"arrays with the leading axes {shapes} do not fit; give them the same, or 1, or none") from error


def fits_batch(leads: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether leading axes are those of a batch, or 1, or missing."""
    own = batch[len(batch) - len(leads) :]
    return len(leads) <= len(batch) and all(lead in (1, size) for lead, size in zip(leads, own, strict=True))


def rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """table[index], [..., *table.shape[1:]], for a table [N, ...] and an index int [...]; NaN, or 0, where there is no such row.

    The result is sharded as the index is, and over no further axes.
    """
    # mode="fill" would count a negative index from the end of the table; N marks "no row"
    inside = jnp.where((index >= 0) & (index < table.shape[0]), index, table.shape[0]).astype(jnp.int32)
    fill = jnp.nan if jnp.issubdtype(table.dtype, jnp.floating) else 0
    sharding = jax.typeof(index).sharding
    if AxisType.Explicit not in (sharding.mesh.axis_types or ()):
        return jnp.take(table, inside, axis=0, mode="fill", fill_value=fill)
    spec = (*sharding.spec, *[None] * (index.ndim - len(sharding.spec) + table.ndim - 1))
    out = NamedSharding(sharding.mesh, PartitionSpec(*spec))
    return table.at[inside].get(mode="fill", fill_value=fill, out_sharding=out)


def with_query_heads(q: jax.Array, k: jax.Array) -> jax.Array:
    """k, [..., Tk, Hk, D], with as many heads as q: each key head is repeated H / Hk times (grouped-query attention)."""
    heads, groups = q.shape[-2], k.shape[-2]
    if heads % groups:
        raise ValueError(f"the {heads} heads of q must be a multiple of the {groups} heads of k; repeat or drop heads first")
    return k if heads == groups else jnp.repeat(k, heads // groups, axis=-2)
