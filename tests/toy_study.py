"""The smallest study that uses every part of one. Tests and the configs that they write import it."""

from rope_jax import NTK, DynamicNTK, Learned, RoPE
from rope_jax.optimizers import WarmupCosine
from rope_jax.study.config import Experiment, Method, Variant
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse


def toy_experiment() -> Experiment:
    """Two tasks, two encoders, two variants; seconds to run."""
    return Experiment(
        name="toy",
        tasks=(Copy(alphabet=4), Reverse(alphabet=4)),
        methods=(
            Method(encoder=Learned(max_length=32)),
            Method(
                encoder=RoPE(),
                variants=(
                    Variant(name="NTK 2", encoder=RoPE(scaling=NTK(factor=2.0))),
                    Variant(name="DynamicNTK", encoder=RoPE(scaling=DynamicNTK(original_length=8))),
                ),
            ),
        ),
        model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=8, batch_size=4, max_length=3, schedule=WarmupCosine(warmup_steps=2)),
        evaluate=EvaluateConfig(lengths=(2, 3, 5), examples=16),
        seeds=(0, 1),
    )
