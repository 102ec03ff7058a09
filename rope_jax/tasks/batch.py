"""Examples as arrays: what a task gives to training and evaluation."""

from typing import NamedTuple

import jax

__all__ = ["Batch"]


class Batch(NamedTuple):
    """Examples, padded on the right to one length T.

    A task draws it with these shapes. The functions of `rope_jax.tasks.formats` make one example, without the axis B.

    Attributes:
      tokens: int32 [B, T], what the model reads.
      targets: int32 [B, T], what the model should predict at each position.
      loss_mask: bool [B, T], true where the target counts in the training loss.
      answer_mask: bool [B, T], true where the target is scored in evaluation. An example without such a target counts for
        nothing.
      lengths: int32 [B], the unpadded number of input positions.
    """

    tokens: jax.Array
    targets: jax.Array
    loss_mask: jax.Array
    answer_mask: jax.Array
    lengths: jax.Array

    def cut_to(self, length: int) -> "Batch":
        """The same examples with only the first `length` input positions, which must hold the longest of them."""
        return self._replace(
            tokens=self.tokens[..., :length],
            targets=self.targets[..., :length],
            loss_mask=self.loss_mask[..., :length],
            answer_mask=self.answer_mask[..., :length],
        )
