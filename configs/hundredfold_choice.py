"""How base and slope of configs/hundredfold.py were chosen: by models trained on lengths 1 to 4, tested at 12 and no longer.

Command:
    python -m experiments.compare configs/hundredfold_choice.py --out out/hundredfold_choice
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.policies import Grid
from rope_jax.tasks import Copy

PAIRS = ((10_000.0, 4.0), (10_000.0, 16.0), (10_000.0, 64.0), (100.0, 16.0), (10.0, 4.0), (10.0, 16.0), (10.0, 64.0), (3.0, 16.0))


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold, the choice",
        tasks=(Copy(alphabet=16, end_marker=True),),
        methods=tuple(
            Method(
                encoder=Compose(RoPE(base=base, sections=(4, 4), arrangement="axial"), ALiBi(axis=1, slope_scale=slope_scale)),
                policy=Grid(),
            )
            for base, slope_scale in PAIRS
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=4, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(4, 8, 12), examples=4096),
        seeds=(0, 1, 2),
    )
