"""The usual formats of an example, as plain functions of arrays that tasks call, and the tokens that they use."""

import jax
import jax.numpy as jnp

from rope_jax.encoders._internal.inputs import integers
from rope_jax.tasks.batch import Batch

__all__ = ["BOS", "EOS", "FIRST_SYMBOL", "PAD", "SEP", "decoder"]

PAD, BOS, SEP, EOS = range(4)
FIRST_SYMBOL = 4  # symbols of strings are FIRST_SYMBOL and above


def decoder(x: jax.Array, x_length: jax.Array, y: jax.Array, y_length: jax.Array, *, end_marker: bool = False) -> Batch:
    """One example for a decoder: BOS x SEP y EOS, of which the model reads all but the last token.

    Each target is the token that follows. Targets in y and its EOS are trained on and scored. An example has
    x_length + y_length + 2 input positions, and one more with an end marker. `jax.vmap` makes a batch of examples.

    Args:
      x: int [N], N >= 1, of which the first x_length entries count.
      x_length: int [], may be traced.
      y: int [M], M >= 1, of which the first y_length entries count.
      y_length: int [], may be traced.
      end_marker: whether the format is SEP x EOS SEP y EOS instead. x then ends as y does, so that the end can be copied like
        any symbol.

    Returns:
      Batch without the axis B, with T = N + M + 2, and one more with an end marker.

    Raises:
      ValueError: x or y has no entries, or lengths are not integers.
    """
    if x.shape[0] < 1 or y.shape[0] < 1:
        raise ValueError(f"decoder needs arrays x and y with at least 1 entry, got shapes {x.shape} and {y.shape}; pad them")
    x_length, y_length = (
        integers(name, length, lowest=0).astype(jnp.int32) for name, length in (("x_length", x_length), ("y_length", y_length))
    )
    index = jnp.arange(x.shape[0] + y.shape[0] + 3 + int(end_marker), dtype=jnp.int32)
    y_index = index - x_length - 2 - int(end_marker)  # the entry of y that stands at each index
    sequence = jnp.where(index <= x_length, x[jnp.clip(index - 1, 0, x.shape[0] - 1)], y[jnp.clip(y_index, 0, y.shape[0] - 1)])
    if end_marker:
        sequence = jnp.where(y_index == -2, EOS, sequence)
    first = SEP if end_marker else BOS
    sequence = jnp.where(index == 0, first, jnp.where(y_index == -1, SEP, jnp.where(y_index == y_length, EOS, sequence)))
    sequence = jnp.where(y_index > y_length, PAD, sequence).astype(jnp.int32)
    length = x_length + y_length + 2 + int(end_marker)
    is_input = index[:-1] < length
    is_answer = is_input & (y_index[1:] >= 0)
    return Batch(
        tokens=jnp.where(is_input, sequence[:-1], PAD),
        targets=sequence[1:],
        loss_mask=is_answer,
        answer_mask=is_answer,
        lengths=length,
    )
