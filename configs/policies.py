"""Position policies with the quickstart's encoders: which positions tokens are given, in training and in evaluation.

Question: does training on drawn positions help at lengths beyond the training length?

Command:
    python -m experiments.compare configs/policies.py --out out/policies

Cost: 22 minutes on 2 CPU cores that other work shared (one run).

Chosen: nothing was tuned here. The settings are the quickstart's, with three quarters of its steps. Each policy that draws
positions is also evaluated with contiguous ones (the variant "contiguous"), as in the paper on PoSE. Learned cannot be used
with real positions, so that pair is left out.

Expected (results/policies), on copy: RoPE trained with PoSE and tested on contiguous positions reaches 0.96 at 12, 0.79 at 15
and 0.59 at 18. All others reach at most 0.51 at 15. At 12, methods that are tested on drawn positions stay below 0.75, except
for RoPE with RandomOffset, whose results an offset does not change.
"""

from rope_jax import Learned, RoPE, Sinusoidal
from rope_jax.policies import Contiguous, PoSE, RandomFloat, Randomized, RandomOffset
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy, Reverse

POSITIONS = 128  # 98 are the input positions of the longest test example
ENCODERS = (Sinusoidal(), Learned(max_length=POSITIONS), RoPE())
DRAWN = (
    RandomOffset(max_position=POSITIONS),
    PoSE(max_position=POSITIONS),
    Randomized(max_position=POSITIONS),
    RandomFloat(max_position=float(POSITIONS)),
)


def experiment() -> Experiment:
    plain = [Method(encoder=encoder) for encoder in ENCODERS]
    drawn = [
        Method(
            name=f"{type(encoder).__name__}, {type(policy).__name__}",
            encoder=encoder,
            policy=policy,
            variants=(Variant(name="contiguous", policy=Contiguous()),),
        )
        for policy in DRAWN
        for encoder in ENCODERS
        if not (policy.real and isinstance(encoder, Learned))
    ]
    return Experiment(
        name="position policies",
        tasks=(Copy(alphabet=16), Reverse(alphabet=16)),
        methods=(*plain, *drawn),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 12, 13, 14, 15, 18, 24, 48), examples=512),
        seeds=(0, 1),
    )
