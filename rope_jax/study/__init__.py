"""What is asked (config), what is there (store), and how both are written (serialization).

Configs import from here: `from rope_jax.study import Experiment, Method`.
"""

from rope_jax.study.config import Experiment, Method, Variant
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.study.tune import Tune

__all__ = [
    "EvaluateConfig",
    "Experiment",
    "Method",
    "ModelConfig",
    "TrainConfig",
    "Tune",
    "Variant",
    "load",
    "run",
    "trained",
]


def __getattr__(name: str) -> object:
    """`run`, `load` and `trained`, imported when they are first used: they import training, which imports this package."""
    if name in ("load", "run", "trained"):
        from rope_jax.study import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
