"""Adam with decoupled weight decay."""

from dataclasses import dataclass, field

import jax
import optax

from rope_jax.optimizers.base import Optimizer, require_decay_rate, require_not_negative

__all__ = ["AdamW"]


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2).

    At step t, with gradient g and learning rate r: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, and the parameter p becomes
    p - r (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay p).

    Attributes:
      b1: decay rate of the moving average of gradients; a new value compiles a new program.
      b2: decay rate of the moving average of squared gradients; a new value compiles a new program.
      eps: added to the square root.
      weight_decay: of matrices; vectors and scalars are not decayed.
    """

    # static, because 1 - b2 of a float32 b2 differs from the exact value by 1e-5 of it
    b1: float = field(default=0.9, metadata={"static": True})
    b2: float = field(default=0.999, metadata={"static": True})
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        require_decay_rate(self, "b1", "b2")
        require_not_negative(self, "eps", "weight_decay")

    def transformation(self, learning_rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.adamw(
            learning_rate,
            b1=self.b1,
            b2=self.b2,
            eps=self.eps,
            weight_decay=self.weight_decay,
            mask=lambda params: jax.tree.map(lambda p: p.ndim >= 2, params),
        )
