"""What is asked (config), what is there (store), and how both are written (serialization).

Configs import from here: `from rope_jax.study import Experiment, Method`.
"""

from rope_jax.study.config import Experiment, Method, Variant
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig

__all__ = ["EvaluateConfig", "Experiment", "Method", "ModelConfig", "TrainConfig", "Variant"]
