"""The pure functions of rotary position embedding (Su et al. 2021, arXiv:2104.09864); the encoder is in `rope`.

The functions are called in this order::

    frequencies = rotary_frequencies(rotary_dim, scaling=...)     once a model
    cos, sin = rotary_tables(frequencies, positions)              once a forward pass
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)               every layer

All layers use the same tables.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._internal.arrays import batch_of, fits_batch, leading
from .._internal.inputs import scalar, shown, tokens, whole
from .exact_angles import fixed_point_turns, reduced_angle, require_reducible
from .frequencies import Frequencies

__all__ = ["rotary_tables", "rotate", "rotation_matrix"]

Layout = Literal["half", "interleaved"]
Arrangement = Literal["chunked", "interleaved", "axial"]


def rotary_tables(
    frequencies: Frequencies,
    positions: jax.Array,
    *,
    sections: tuple[int, ...] | None = None,
    arrangement: Arrangement = "chunked",
    exact: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The cosine and sine of every position and frequency, multiplied by attention_scale.

    Args:
      frequencies: from `rotary_frequencies`; with a leading axis, each example has its own frequencies.
      positions: [..., T], any integer or float dtype, within the range of int32; with `sections`, [axes, ..., T].
      sections: how many of the R/2 pairs each chunk has; they sum to R/2. None: one axis of positions.
      arrangement: which axis a pair reads. "chunked" (Qwen2-VL): chunk j of the pairs reads axis j mod axes, as TT HHH WWW.
        "interleaved" (Qwen3-VL): axis a > 0 has the sections[a] pairs a, a + axes, a + 2 axes, ..., and axis 0 has all others.
        "axial" (images): the chunks have equal size, as RR CC, and each has the whole range of frequencies, every axes-th of
        them.
      exact: removes whole turns from the angles with integer arithmetic. The error is at most 1e-6 up to position 1e7, where the
        float32 product has no correct digit left (see `exact_angles`). Real positions are below 2^32 in size; where they are
        traced, others give NaN. The angles are those of `frequencies`: float64 values
        where base, scaling and length were concrete, float32 values where one was traced.

    Returns:
      (cos, sin), float32 [..., T, R/2].

    Raises:
      ValueError: sections do not sum to R/2 or do not fit the axes, the arrangement is unknown, or concrete positions are no
        finite numbers of the range above.
    """
    _require_frequencies("rotary_tables", frequencies)
    inv_freq, low = frequencies.inv_freq, frequencies.inv_freq_low
    positions = tokens("positions", positions)
    if exact:
        require_reducible(positions)
    require_arrangement(arrangement)
    if sections is None:
        spread = jnp.expand_dims(positions, -1)
    else:
        axis_of_pair, source = arranged(sections, arrangement, positions.shape[0], inv_freq.shape[-1])
        spread = jnp.moveaxis(jnp.take(positions, axis_of_pair, axis=0), 0, -1)
        inv_freq, low = inv_freq[..., source], low[..., source]
    batch_of(spread.shape[:-2], inv_freq.shape[:-1])
    rank = max(spread.ndim, inv_freq.ndim + 1)
    spread = leading(spread, rank)

    def per_pair(x: jax.Array) -> jax.Array:
        return leading(jnp.expand_dims(x, -2), rank)

    angles = spread.astype(jnp.float32) * per_pair(inv_freq)
    if exact:
        turns = [per_pair(limb) for limb in fixed_point_turns(inv_freq, low)]
        # integers have no derivative, so the value is that of the reduced angle and the derivative that of the product
        reduced = reduced_angle(spread, turns, per_pair(inv_freq))
        angles = lax.stop_gradient(reduced) + (angles - lax.stop_gradient(angles))
    scale = leading(jnp.expand_dims(frequencies.attention_scale, (-2, -1)), rank)
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def _require_frequencies(reader: str, frequencies: Frequencies) -> None:
    if not isinstance(frequencies, Frequencies):
        raise ValueError(f"{reader} takes Frequencies, as from rotary_frequencies, got {shown(frequencies)}")


def require_arrangement(arrangement: str) -> None:
    """Raises ValueError unless the arrangement is known."""
    if arrangement not in get_args(Arrangement):
        raise ValueError(f"arrangement must be 'chunked', 'interleaved' or 'axial', got {arrangement!r}")


def arranged(sections: tuple[int, ...], arrangement: str, axes: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """The axis of the positions that each pair reads, and the index of its frequency; both int [R/2]."""
    if not isinstance(sections, (tuple, list)) or axes < 1:
        raise ValueError(f"sections must be a tuple of ints for at least one axis of positions, got {sections!r} for {axes} axes")
    for size in sections:
        whole("sections", size)
    if any(size < 0 for size in sections) or sum(sections) != pairs:
        raise ValueError(
            f"sections={tuple(sections)} must not be negative and must sum to the {pairs} rotated pairs, got {sum(sections)}; "
            "change them, or the rotated width"
        )
    usual = np.arange(pairs)  # pair i has frequency i
    if arrangement == "chunked":
        if len(sections) < axes:
            raise ValueError(
                f"sections={tuple(sections)} leave axes unread: positions [axes, ..., T] have {axes} axes; give one for each"
            )
        return np.repeat(np.arange(len(sections)) % axes, sections), usual
    if len(sections) != axes:
        raise ValueError(
            f"{arrangement} sections={tuple(sections)} need one axis of positions each, got {axes} axes; give as many sections"
        )
    if arrangement == "axial":
        if len(set(sections)) > 1:
            raise ValueError(
                f"axial sections={tuple(sections)} must be equal: every axis has the same frequencies; or use 'chunked'"
            )
        return np.repeat(np.arange(axes), sections), np.tile(usual[::axes], axes)
    chosen = np.zeros(pairs, int)
    for axis in range(1, axes):
        taken = axis + axes * np.arange(sections[axis])
        if taken.size and taken[-1] >= pairs:
            raise ValueError(
                f"interleaved sections={tuple(sections)} do not fit: axis {axis} would take pair {taken[-1]} of {pairs}; "
                f"give it at most {len(range(axis, pairs, axes))} pairs"
            )
        chosen[taken] = axis
    return chosen, usual


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, layout: Layout = "half", inverse: bool = False) -> jax.Array:
    """Rotates each pair of features by its angle (arXiv:2104.09864, eq. 34).

    Args:
      x: [..., T, H, D], any float dtype.
      cos, sin: float32 [..., T, R/2] with R <= D; features from R on are not changed.
      layout: which features form a pair. "half": (i, i + R/2), as Llama and GPT-NeoX; "interleaved": (2i, 2i + 1), as GPT-J and
        the paper. A checkpoint does not record its layout.
      inverse: rotates back by the same angle.

    Returns:
      The rotated x, in x's dtype; the arithmetic is float32.

    Raises:
      ValueError: x is not of a float dtype, R > D, the shapes of cos, sin and x do not fit, or the layout is unknown.
    """
    pairs, width = cos.shape[-1], x.shape[-1]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"rotate takes floats, got {x.dtype}; cast x first")
    if cos.shape != sin.shape:
        raise ValueError(f"cos and sin must have one shape, got {cos.shape} and {sin.shape}")
    if 2 * pairs > width:
        raise ValueError(f"the tables rotate {2 * pairs} features, but a head of x has {width}; use rotary_dim <= {width}")
    if x.ndim < 3 or cos.ndim < 2 or cos.shape[-2] != x.shape[-3] or not fits_batch(cos.shape[:-2], x.shape[:-3]):
        raise ValueError(
            f"x {x.shape} must have the axes [..., T, H, D], and the tables {cos.shape} the axes [..., T, R/2] with the same T"
        )
    axis = _pair_axis(layout)
    shape = (2, pairs) if axis == -2 else (pairs, 2)
    in_pairs = x[..., : 2 * pairs].astype(jnp.float32).reshape(*x.shape[:-1], *shape)
    # the derivative of a split joins two views; that of two slices pads and adds, which costs bfloat16 twice as much
    first, second = (jnp.squeeze(half, axis) for half in lax.split(in_pairs, (1, 1), axis=in_pairs.ndim + axis))
    cos = leading(jnp.expand_dims(cos, -2), x.ndim)
    sin = leading(jnp.expand_dims(-sin if inverse else sin, -2), x.ndim)
    # stacking two views runs at the speed of memory; concatenating two halves takes twice as long
    out = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=axis)
    out = out.reshape(*out.shape[:-2], 2 * pairs).astype(x.dtype)
    return out if 2 * pairs == width else jnp.concatenate([out, x[..., 2 * pairs :]], axis=-1)


def _pair_axis(layout: str) -> int:
    """The axis of length 2 when the rotated features are viewed as pairs."""
    if layout == "half":
        return -2
    if layout == "interleaved":
        return -1
    raise ValueError(f"layout must be 'half' (Llama, GPT-NeoX) or 'interleaved' (GPT-J, the paper), got {layout!r}")


def rotation_matrix(position: float | jax.Array, frequencies: Frequencies, *, layout: Layout = "interleaved") -> jax.Array:
    """The matrix R with R @ x = rotate(x) at one position (arXiv:2104.09864, eq. 15), without attention_scale.

    Args:
      position: a scalar; may be traced.
      frequencies: from `rotary_frequencies`, for one length.
      layout: as in `rotate`; the paper has "interleaved".

    Returns:
      float32 [rotary_dim, rotary_dim], block diagonal in the interleaved layout with blocks [[cos, -sin], [sin, cos]].
    """
    _require_frequencies("rotation_matrix", frequencies)
    if frequencies.inv_freq.ndim != 1:
        raise ValueError(
            f"rotation_matrix takes one vector of frequencies, got {frequencies.inv_freq.shape}; use vmap over several"
        )
    pairs = frequencies.inv_freq.shape[-1]
    features = np.arange(2 * pairs).reshape((2, pairs) if _pair_axis(layout) == -2 else (pairs, 2))
    first, second = np.moveaxis(features, _pair_axis(layout), 0)
    angles = scalar("position", position) * frequencies.inv_freq
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    matrix = jnp.zeros((2 * pairs, 2 * pairs), jnp.float32)
    matrix = matrix.at[first, first].set(cos).at[second, second].set(cos)
    return matrix.at[first, second].set(-sin).at[second, first].set(sin)
