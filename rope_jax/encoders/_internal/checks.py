"""Checks that several encoders use."""

import math
from typing import Any

import jax


def require_scale(name: str, value: float) -> None:
    """Raises ValueError unless the standard deviation called `name` is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(
            f"{name} must be finite and not negative, got {value}; the usual value is 0.02, and 0.0 starts with zeros"
        )


def is_traced(*values: Any) -> bool:
    """Whether any of the values is known only while a compiled program runs."""
    return any(isinstance(value, jax.core.Tracer) for value in values)
