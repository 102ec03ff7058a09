"""A constant learning rate."""

from dataclasses import dataclass

import optax

from rope_jax.optimizers.base import Schedule, require_not_negative

__all__ = ["Constant"]


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak at every step, after an optional linear warm-up from zero.

    Attributes:
      warmup_steps: steps of the warm-up; at most half of all steps are used for it.
    """

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        require_not_negative(self, "warmup_steps")

    def learning_rate(self, peak: float, steps: int) -> optax.Schedule:
        warmup_steps = min(self.warmup_steps, steps // 2)
        return optax.join_schedules(
            [optax.linear_schedule(0.0, peak, warmup_steps), optax.constant_schedule(peak)], [warmup_steps]
        )
