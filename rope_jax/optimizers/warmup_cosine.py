"""Linear warm-up, then cosine decay to zero."""

from dataclasses import dataclass

import optax

from rope_jax.optimizers.base import Schedule, require_not_negative

__all__ = ["WarmupCosine"]


@dataclass(frozen=True, kw_only=True)
class WarmupCosine(Schedule):
    """Linear from zero to the peak, then half a cosine down to zero (Loshchilov and Hutter 2017, arXiv:1608.03983).

    Attributes:
      warmup_steps: steps of the linear part; at most half of all steps are used for it.
    """

    warmup_steps: int = 100

    def __post_init__(self) -> None:
        require_not_negative(self, "warmup_steps")

    def learning_rate(self, peak: float, steps: int) -> optax.Schedule:
        warmup_steps = min(self.warmup_steps, steps // 2)
        # optax.warmup_cosine_decay_schedule is the same formula, but compares the peak with zero in Python
        return optax.join_schedules(
            [optax.linear_schedule(0.0, peak, warmup_steps), optax.cosine_decay_schedule(peak, steps - warmup_steps)],
            [warmup_steps],
        )
