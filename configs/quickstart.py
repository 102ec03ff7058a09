"""Sinusoidal, learned and rotary encodings on copy and reversal, at lengths up to four times the training length.

Question: which of them works beyond the training length, and do scaling rules for RoPE help without further training?

Command:
    python -m experiments.compare configs/quickstart.py --out out/quickstart

Cost: 157 s on 2 CPU cores from the command to the table, with an empty compilation cache (one run).

Chosen, by exact match at 12 on copy, on lengths up to 12 alone: learning rate 2e-3 (tried: 2e-3, 3e-3) and 2,000 steps (tried:
1,500, 2,000). Learned has a vector for every position of the longest test; those past 26 positions are never trained, on
purpose.

Expected (results/quickstart): at 12 symbols, exact match >= 0.99 for Sinusoidal and RoPE in every seed. At 13 symbols, 0 for
Sinusoidal and Learned. RoPE as trained fails within two symbols, and DynamicLinear within six. At most 0.002 at 18, and 0 at
24.
"""

from rope_jax import NTK, DynamicLinear, DynamicNTK, Learned, RoPE, Sinusoidal
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
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
