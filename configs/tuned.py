"""Six encodings on copy and reversal, each with the learning rate that suits it: equal budgets for all.

Question: does the order of the encodings beyond the training length hold when each is trained with a learning rate of its own?

Command:
    python -m experiments.compare configs/tuned.py --out out/tuned

Cost: 67 minutes on 2 CPU cores that other work shared, 59 minutes of CPU time (one run).

Chosen, for each task and method by `Tune`: the learning rate, of four, by the mean exact match of two seeds of their own at 6 and
12 symbols. No length beyond training is looked at. RoPE's scaling rules need no training; they share RoPE's choice.

Expected (results/tuned): at 12 symbols, mean exact match >= 0.98 for Sinusoidal, Learned and RoPE on both tasks, and for ALiBi
and Kerple on copy; 0.84-0.86 for ALiBi and Kerple on reversal; NoPE 0.51 and 0.13. Copy at 24: ALiBi 0.85 (seeds 0.75-0.95),
Kerple 0.77 (0.74-0.81), all others 0. Copy at 48: ALiBi 0.17 (0-0.55). Reversal at 18: no mean above 0.02. On copy the order is
that of results/encoders, where all share one learning rate.
"""

from rope_jax import NTK, ALiBi, DynamicLinear, DynamicNTK, Kerple, Learned, Linear, NoPE, RoPE, Sinusoidal, YaRN
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Tune, Variant
from rope_jax.tasks import Copy, Reverse

TRAIN_LENGTH = 12
ORIGINAL_LENGTH = Copy().input_length(TRAIN_LENGTH)  # 26 input positions: BOS x SEP y


def experiment() -> Experiment:
    scaled = {
        "Linear 2": Linear(factor=2.0),
        "DynamicLinear": DynamicLinear(original_length=ORIGINAL_LENGTH),
        "NTK 2": NTK(factor=2.0),
        "DynamicNTK": DynamicNTK(original_length=ORIGINAL_LENGTH),
        "YaRN 2": YaRN(factor=2.0, original_length=ORIGINAL_LENGTH),
    }
    return Experiment(
        name="tuned",
        tasks=(Copy(alphabet=16), Reverse(alphabet=16)),
        methods=(
            Method(encoder=Sinusoidal()),
            Method(encoder=Learned(max_length=128)),
            Method(
                encoder=RoPE(),
                variants=tuple(Variant(name=name, encoder=RoPE(scaling=scaling)) for name, scaling in scaled.items()),
            ),
            Method(encoder=ALiBi()),
            Method(encoder=Kerple()),
            Method(encoder=NoPE()),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, min_length=1, max_length=TRAIN_LENGTH),
        tune=Tune(
            grid={"train.learning_rate": (1e-3, 2e-3, 4e-3, 8e-3)},
            seeds=(100, 101),
            lengths=(6, TRAIN_LENGTH),
            metric="exact_match",
        ),
        evaluate=EvaluateConfig(lengths=(6, 12, 13, 14, 15, 18, 24, 36, 48), examples=512),
        seeds=(0, 1, 2, 3, 4),
    )
