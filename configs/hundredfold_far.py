"""How far the models of configs/hundredfold.py stay exact: up to 1,000 times the training length.

Command:
    python -m experiments.compare configs/hundredfold_far.py --out out/hundredfold_far

Cost: 15 minutes on 2 CPU cores that other work shared (one run).

Chosen: nothing. Tasks, encoder, positions and training settings are those of configs/hundredfold.py, so the weights are the
same. There are few examples, since 12,000 symbols are 24,003 positions.

Expected (results/hundredfold_far): exact match 1.000 in every seed at every length, for copying 16 and 2 symbols and, with the
snake (an oracle), for reversal.
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.policies import Grid
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse

COPY = (Copy(alphabet=16, end_marker=True), Copy(alphabet=2, end_marker=True))
REVERSE = (Reverse(alphabet=16, end_marker=True),)
ENCODER = Compose(RoPE(base=3.0, sections=(4, 4), arrangement="axial"), ALiBi(axis=1, slope_scale=16.0))


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold, further",
        tasks=(*COPY, *REVERSE),
        methods=(
            Method(name="grid + ALiBi", encoder=ENCODER, policy=Grid(order="forward"), tasks=COPY),
            Method(name="snake + ALiBi", encoder=ENCODER, policy=Grid(order="snake"), tasks=REVERSE),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(12, 1200, 2400, 4800, 12000), examples=(512, 64, 16, 4, 2)),
        seeds=(0, 1, 2),
    )
