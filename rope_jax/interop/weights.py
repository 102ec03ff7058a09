"""The two orders of a head's features that checkpoints are trained with, and the way from one to the other."""

from typing import Any

import numpy as np

__all__ = ["permute_heads"]


def permute_heads(weights: Any, *, head_dim: int, to: str, rotary_dim: int | None = None, start: int = 0, axis: int = -1) -> Any:
    """Reorders the outputs of a query or key projection, so that the model can rotate in the other layout.

    A projection trained with one layout, reordered, and rotated in the other gives the same attention scores: queries and keys
    change order alike. Convert both of them, their biases, and what acts on single features of a head between projection and
    rotation (the scale of a q/k norm); values and output projections stay. In the terms of `rotate`,
    interleaved(x)[..., perm] == half(x[..., perm]) with perm = [0, 2, 4, ..., 1, 3, 5, ...].

    Args:
      weights: numpy or jax, any dtype, may be traced. Along `axis` lie whole heads: a kernel [in, H*D] or [in, H, D], a bias
        [H*D] or [H, D]; grouped keys have fewer heads, which is read off the array.
      head_dim: D, the features of one head.
      to: the layout to convert to, "half" or "interleaved"; `weights` are in the other one.
      rotary_dim: how many features of a head are rotated; None means all from `start` on. The others stay where they are.
      start: the first rotated feature of a head: 0, save in models whose rotated slice comes last (DeepSeek: qk_nope_head_dim).
      axis: where the outputs are: last in a Flax kernel [in, out], first in a PyTorch weight [out, in] (axis=0).

    Returns:
      The reordered weights, of the same shape and dtype.

    Raises:
      ValueError: an unknown layout, an axis that does not hold whole heads, or a rotated slice that is odd or does not fit.
    """
    if to not in ("half", "interleaved"):
        raise ValueError(f"permute_heads converts to 'half' (Llama, GPT-NeoX) or 'interleaved' (GPT-J, the paper), got to={to!r}")
    if not -weights.ndim <= axis < weights.ndim:
        raise ValueError(f"permute_heads axis={axis} does not exist in weights of shape {tuple(weights.shape)}")
    size = weights.shape[axis]
    if head_dim < 1 or size % head_dim:
        raise ValueError(
            f"permute_heads needs whole heads along axis {axis}, but {size} is not a multiple of head_dim={head_dim}; a PyTorch "
            f"weight [out, in] wants axis=0, a Flax kernel [in, out] axis=-1 (the shape is {tuple(weights.shape)})"
        )
    rotary_dim = head_dim - start if rotary_dim is None else rotary_dim
    if start < 0 or rotary_dim < 2 or rotary_dim % 2 or start + rotary_dim > head_dim:
        raise ValueError(
            f"permute_heads rotates an even number of features, at least 2, within a head, got rotary_dim={rotary_dim} from "
            f"start={start} of head_dim={head_dim}"
        )
    turned = np.concatenate([np.arange(0, rotary_dim, 2), np.arange(1, rotary_dim, 2)])  # where each half-layout feature is
    order = np.arange(head_dim)
    order[start : start + rotary_dim] = start + (turned if to == "half" else np.argsort(turned))
    index = (head_dim * np.arange(size // head_dim)[:, None] + order).reshape(-1)
    return weights[(slice(None),) * (axis % weights.ndim) + (index,)]
