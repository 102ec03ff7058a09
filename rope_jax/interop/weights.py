"""Converts weights between the two layouts, which are the orders of a head's features in checkpoints."""

from typing import Any

import numpy as np

from rope_jax.encoders._internal.inputs import whole

__all__ = ["permute_heads"]


def permute_heads(weights: Any, *, head_dim: int, to: str, rotary_dim: int | None = None, start: int = 0, axis: int = -1) -> Any:
    """Reorders the outputs of a query or key projection, so that the model can rotate in the other layout.

    A projection trained with one layout, reordered and rotated in the other layout, gives the same attention scores, because the
    features of queries and keys change their order in the same way. Convert the projections of both, their biases, and weights of
    single features between projection and rotation (the scale of a q/k norm). Do not convert values and output projections. In
    terms of `rotate`, interleaved(x)[..., perm] == half(x[..., perm]) with perm = [0, 2, 4, ..., 1, 3, 5, ...].

    Args:
      weights: numpy or jax, any dtype, may be traced. `axis` holds whole heads: a kernel [in, H*D] or [in, H, D], a bias [H*D] or
        [H, D]. Grouped keys have fewer heads; their number follows from the shape.
      head_dim: D, the features of one head.
      to: the layout to convert to, "half" or "interleaved"; `weights` have the other one.
      rotary_dim: how many features of a head are rotated; None means all from `start` on. The others are not moved.
      start: the first rotated feature of a head. It is 0, except in models whose rotated slice is last (DeepSeek:
        qk_nope_head_dim).
      axis: the axis of the outputs: last in a Flax kernel [in, out], first in a PyTorch weight [out, in] (axis=0).

    Returns:
      The reordered weights, of the same shape and dtype.

    Raises:
      ValueError: the layout is unknown, the axis does not hold whole heads, or the rotated slice is odd or does not fit.
    """
    if to not in ("half", "interleaved"):
        raise ValueError(f"permute_heads converts to 'half' (Llama, GPT-NeoX) or 'interleaved' (GPT-J, the paper), got to={to!r}")
    for name, value in (("head_dim", head_dim), ("start", start), ("axis", axis)):
        whole(f"permute_heads {name}", value)
    if rotary_dim is not None:
        whole("permute_heads rotary_dim", rotary_dim)
    if not -weights.ndim <= axis < weights.ndim:
        raise ValueError(f"permute_heads axis={axis} does not exist in weights of shape {tuple(weights.shape)}")
    size = weights.shape[axis]
    if head_dim < 1 or size % head_dim:
        raise ValueError(
            f"permute_heads needs whole heads along axis {axis}, but {size} is not a multiple of head_dim={head_dim}; use axis=0 "
            f"for a PyTorch weight [out, in], axis=-1 for a Flax kernel [in, out] (the shape is {tuple(weights.shape)})"
        )
    rotary_dim = head_dim - start if rotary_dim is None else rotary_dim
    if start < 0 or rotary_dim < 2 or rotary_dim % 2 or start + rotary_dim > head_dim:
        raise ValueError(
            f"permute_heads rotates an even number of features, at least 2, within a head, got rotary_dim={rotary_dim} from "
            f"start={start} of head_dim={head_dim}"
        )
    # for each feature of the half layout, its index in the interleaved one
    interleaved = np.concatenate([np.arange(0, rotary_dim, 2), np.arange(1, rotary_dim, 2)])
    order = np.arange(head_dim)
    order[start : start + rotary_dim] = start + (interleaved if to == "half" else np.argsort(interleaved))
    index = (head_dim * np.arange(size // head_dim)[:, None] + order).reshape(-1)
    return weights[(slice(None),) * (axis % weights.ndim) + (index,)]
