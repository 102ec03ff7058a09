"""Does everything run? Two tasks, three encodings and a scaling rule, in a model too small and too short-lived to learn anything.

Command:
    python -m experiments.compare configs/smoke.py --out out/smoke

Cost: 51 s on 2 CPU cores that other work shared, nearly all of it compiling (one run).

Chosen: nothing. The sizes are the smallest that use every step of a comparison.

Expected: tables and figures with an exact match near 0 everywhere.
"""

from rope_jax import ALiBi, DynamicNTK, RoPE, Sinusoidal
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy, Reverse

TRAIN_LENGTH = 3
ORIGINAL_LENGTH = Copy().input_length(TRAIN_LENGTH)


def experiment() -> Experiment:
    scaled = Variant(name="DynamicNTK", encoder=RoPE(scaling=DynamicNTK(original_length=ORIGINAL_LENGTH)))
    return Experiment(
        name="smoke",
        tasks=(Copy(alphabet=4), Reverse(alphabet=4)),
        methods=(Method(encoder=Sinusoidal()), Method(encoder=ALiBi()), Method(encoder=RoPE(), variants=(scaled,))),
        model=ModelConfig(num_layers=1, width=16, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=20, batch_size=4, max_length=TRAIN_LENGTH),
        evaluate=EvaluateConfig(lengths=(2, 3, 5), examples=16),
        seeds=(0, 1),
    )
