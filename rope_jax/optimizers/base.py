"""Optimisers and learning-rate schedules as choices of the config: frozen dataclasses that build the functions of optax.

A new optimiser or schedule is one class, in this folder or in a file of the user's that a config imports.
"""

from dataclasses import dataclass

import optax

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass

__all__ = ["Optimizer", "Schedule"]


@dataclass(frozen=True, kw_only=True)
class _Choice(TypedDataclass):
    """Base of optimisers and schedules.

    Float options enter the compiled training program as arguments, so that configs which differ in them alone share one program.
    In `transformation` and `learning_rate` they are therefore traced arrays (float32 []): compute with them, but do not branch on
    them in Python. An option that must be a Python number there is declared with `dataclasses.field(metadata={"static": True})`,
    as is one whose float32 value is not exact enough. Options of other types are always Python values.
    """


@dataclass(frozen=True, kw_only=True)
class Optimizer(_Choice):
    """Base of the optimisers. `TrainConfig.clip_norm` clips the gradient before it reaches any of them."""

    def transformation(self, learning_rate: optax.Schedule) -> optax.GradientTransformation:
        """The optimiser as optax's pair of functions (init, update).

        Args:
          learning_rate: of each step, from the config's schedule.
        """
        raise TypeError(f"{type(self).__name__} defines no transformation(learning_rate)")


@dataclass(frozen=True, kw_only=True)
class Schedule(_Choice):
    """Base of the learning-rate schedules."""

    def learning_rate(self, peak: float, steps: int) -> optax.Schedule:
        """The learning rate as a function of the number of steps done, int32 [] -> float32 [].

        Args:
          peak: `TrainConfig.learning_rate`; traced, as float options are.
          steps: optimiser steps of the whole training.
        """
        raise TypeError(f"{type(self).__name__} defines no learning_rate(peak, steps)")


def require_not_negative(config: TypedDataclass, *names: str) -> None:
    """Raises ValueError for the first of these options that is negative."""
    for name in names:
        value = getattr(config, name)
        if value < 0:
            raise ValueError(f"{type(config).__name__} {name} must not be negative, got {value!r}")


def require_decay_rate(config: TypedDataclass, *names: str) -> None:
    """Raises ValueError for the first of these options that is no decay rate of a moving average."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{type(config).__name__} {name} must be at least 0 and below 1, got {value!r}")
