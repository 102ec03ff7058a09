"""How base and slope of configs/hundredfold.py were chosen: by models trained on lengths 1 to 4 and tested up to 12.

Command:
    python -m experiments.compare configs/hundredfold_choice.py --out out/hundredfold_choice

Cost: about 8 minutes on 2 free CPU cores (estimated).

Chosen: base 3 with slopes x 16, the pair with the highest exact match at 12. No longer length was looked at.

Expected: exact match at 12 of each seed, where two seeds (base 10,000: three) were run one pair at a time (no rows were kept):

    base 10,000  slopes x 1    0.002  0.000  0.000      base 10   slopes x 4    1.000  0.070
                 slopes x 4    0.071  0.002  0.381                slopes x 16   0.999  0.973
                 slopes x 16   0.506  0.705  0.554                slopes x 64   0.997  0.762
                 slopes x 64   0.416  0.502  0.735      base 5    slopes x 16   1.000  0.994
    base 100     slopes x 16   0.844  0.833             base 3    slopes x 16   1.000  1.000

Other settings that were tried with slopes x 16: base 10,000 with 3,000 steps 0.526 0.720, and with weight decay 0.1 0.658
0.822; base 10 with weight decay 0.1 1.000 0.982; Kerple instead of ALiBi 0.046 0.000.
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.policies import Grid
from rope_jax.study.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

PAIRS = (  # RoPE's base, ALiBi's slope_scale
    (10_000.0, 1.0),
    (10_000.0, 4.0),
    (10_000.0, 16.0),
    (10_000.0, 64.0),
    (100.0, 16.0),
    (10.0, 4.0),
    (10.0, 16.0),
    (10.0, 64.0),
    (5.0, 16.0),
    (3.0, 16.0),
)


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold, the choice",
        tasks=(Copy(alphabet=16, end_marker=True),),
        methods=tuple(
            Method(
                name=f"base {base:,.0f}, slopes x {slope_scale:.0f}",
                encoder=Compose(RoPE(base=base, sections=(4, 4), arrangement="axial"), ALiBi(axis=1, slope_scale=slope_scale)),
                policy=Grid(),
            )
            for base, slope_scale in PAIRS
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=4, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(4, 8, 12), examples=4096),
        seeds=(0, 1),
    )
