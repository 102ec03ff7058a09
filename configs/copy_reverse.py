"""The quickstart's question at full size: ten seeds, a larger model, training lengths up to 40, test lengths up to 800.

Command:
    python -m experiments.compare configs/copy_reverse.py --out out/copy_reverse

Cost: 14 cells of 10 seeds and 10,000 steps, about 7e16 floating-point operations of training (6 x parameters x tokens). This is
meant for an accelerator; it has not been timed on one. On 2 CPU cores a step of one seed took 0.66 s (bfloat16, median of 3
chunks of 2 steps, two seeds at once), so the whole would take 11 days. On a CPU, start with
    --seeds 0 1 --encoders RoPE --tasks copy --train.steps 1000 --evaluate.lengths 40 44 48 80

Chosen: nothing was tuned. RoPE(learn_base=True) and RoPE(learn_angles=True) are separate methods, because what they learn is
part of their weights.

Expected: what the quickstart shows at small size (results/quickstart). Encodings that are added to the input stop at the
training length, RoPE a few symbols after it, DynamicLinear later, and nothing holds at twice the training length. This
experiment has not been run to the end: a result that differs is news.
"""

from rope_jax import NTK, DynamicLinear, DynamicNTK, Learned, Linear, NoPE, RoPE, Sinusoidal
from rope_jax.optimizers import WarmupCosine
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy, Reverse

TRAIN_LENGTH = 40
LENGTHS = (20, 40, 41, 42, 44, 48, 60, 80, 120, 160, 240, 400, 800)
ORIGINAL_LENGTH = Copy().input_length(TRAIN_LENGTH)


def experiment() -> Experiment:
    scalings = {
        "Linear 2": Linear(factor=2.0),
        "NTK 2": NTK(factor=2.0),
        "NTK 4": NTK(factor=4.0),
        "DynamicLinear": DynamicLinear(original_length=ORIGINAL_LENGTH),
        "DynamicNTK": DynamicNTK(original_length=ORIGINAL_LENGTH),
    }
    return Experiment(
        name="copy and reversal",
        tasks=(Copy(alphabet=32), Reverse(alphabet=32)),
        methods=(
            Method(encoder=NoPE()),
            Method(encoder=Sinusoidal()),
            Method(encoder=Learned(max_length=Copy().input_length(max(LENGTHS)))),
            Method(
                encoder=RoPE(),
                variants=tuple(Variant(name=name, encoder=RoPE(scaling=scaling)) for name, scaling in scalings.items()),
            ),
            Method(encoder=RoPE(rotary_fraction=0.25)),
            Method(encoder=RoPE(learn_base=True)),
            Method(encoder=RoPE(learn_angles=True)),
        ),
        model=ModelConfig(num_layers=4, width=128, num_heads=8, compute_dtype="bfloat16"),
        train=TrainConfig(
            steps=10_000,
            batch_size=128,
            max_length=TRAIN_LENGTH,
            learning_rate=1e-3,
            schedule=WarmupCosine(warmup_steps=500),
        ),
        evaluate=EvaluateConfig(lengths=LENGTHS, examples=512),
        seeds=tuple(range(10)),
    )
