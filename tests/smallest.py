"""The smallest study that has all parts: one task and method, two trainings of two measurements each; seconds to run."""

from pathlib import Path

from rope_jax import RoPE
from rope_jax.optimizers import WarmupCosine
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

CONFIG = f"import sys\nsys.path[:0] = [{str(Path(__file__).parent)!r}]\nfrom smallest import experiment\n"


def experiment() -> Experiment:
    """Copy with RoPE."""
    return Experiment(
        name="smallest",
        tasks=(Copy(alphabet=4),),
        methods=(Method(encoder=RoPE()),),
        model=ModelConfig(num_layers=1, width=8, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=8, batch_size=2, max_length=3, schedule=WarmupCosine(warmup_steps=2)),
        evaluate=EvaluateConfig(lengths=(2, 3), examples=4),
        seeds=(0, 1),
    )
