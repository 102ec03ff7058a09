"""What is asked (config), what is there (store), and how both are written (serialization).

Configs import from here: `from rope_jax.study import Experiment, Method`.
"""

from rope_jax.study.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant

__all__ = ["EvaluateConfig", "Experiment", "Method", "ModelConfig", "TrainConfig", "Variant"]
