"""Sinusoidal, learned and RoPE with scaling rules, on copy and reversal, at lengths up to four times the training length.

python -m experiments.compare configs/quickstart.py --out out/quickstart
"""

from rope_jax import NTK, DynamicLinear, DynamicNTK, Learned, RoPE, Sinusoidal
from rope_jax.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy, Reverse

TRAIN_LENGTH = 12
ORIGINAL_LENGTH = Copy().input_length(TRAIN_LENGTH)  # 26 input positions: BOS x SEP y


def experiment() -> Experiment:
    scaled = {
        "DynamicLinear": DynamicLinear(original_length=ORIGINAL_LENGTH),
        "NTK 2": NTK(factor=2.0),
        "NTK 4": NTK(factor=4.0),
        "DynamicNTK": DynamicNTK(original_length=ORIGINAL_LENGTH),
    }
    return Experiment(
        name="quickstart",
        tasks=(Copy(alphabet=16), Reverse(alphabet=16)),
        methods=(
            Method(encoder=Sinusoidal()),
            Method(encoder=Learned(max_length=128)),
            Method(
                encoder=RoPE(),
                variants=tuple(Variant(name=name, encoder=RoPE(scaling=scaling)) for name, scaling in scaled.items()),
            ),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, min_length=1, max_length=TRAIN_LENGTH, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 12, 13, 14, 15, 18, 24, 48), examples=512),
        seeds=(0, 1),
    )
