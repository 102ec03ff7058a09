"""Stochastic gradient descent with momentum."""

from dataclasses import dataclass

import optax

from rope_jax.optimizers.base import Optimizer, require_decay_rate

__all__ = ["SGD"]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Gradient descent with momentum (Polyak 1964): m = momentum m + g, and the parameter p becomes p - r m.

    Attributes:
      momentum: decay rate of the sum of gradients; 0 is plain gradient descent.
      nesterov: the step is r (momentum m + g) instead (Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13).
    """

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        require_decay_rate(self, "momentum")

    def transformation(self, learning_rate: optax.Schedule) -> optax.GradientTransformation:
        return optax.sgd(learning_rate, momentum=self.momentum, nesterov=self.nesterov)
