"""Exact copying and reversal at a hundred times the training length, from rows and columns read off the separators.

Command:
    python -m experiments.compare configs/hundredfold.py --out out/hundredfold
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.policies import Grid
from rope_jax.tasks import Copy, Reverse

COPY, COPY_BITS = Copy(alphabet=16, end_marker=True), Copy(alphabet=2, end_marker=True)
REVERSE = Reverse(alphabet=16, end_marker=True)
COPY_NO_MARKER, REVERSE_NO_MARKER = Copy(alphabet=16), Reverse(alphabet=16)

BOTH_AXES = RoPE(base=3.0, sections=(4, 4), arrangement="axial")  # rows and columns turn 4 pairs each, by the same frequencies
COLUMNS = RoPE(base=3.0, sections=(0, 8))  # columns turn all pairs
DECAY = ALiBi(axis=1, slope_scale=16.0)  # on columns
WHOLE = Compose(BOTH_AXES, DECAY)
FORWARD, SNAKE = Grid(order="forward"), Grid(order="snake")


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold",
        tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER, REVERSE_NO_MARKER),
        methods=(
            # forward knows the separators; the snake knows besides that the task reverses
            Method(encoder=WHOLE, policy=FORWARD, tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER)),
            Method(encoder=WHOLE, policy=SNAKE, tasks=(REVERSE, REVERSE_NO_MARKER)),
            # without ALiBi, without the row axis, with contiguous positions; and RoPE as it comes
            Method(encoder=BOTH_AXES, policy=FORWARD, tasks=(COPY,)),
            Method(encoder=BOTH_AXES, policy=SNAKE, tasks=(REVERSE,)),
            Method(encoder=Compose(COLUMNS, DECAY), policy=FORWARD, tasks=(COPY,)),
            Method(encoder=Compose(COLUMNS, DECAY), policy=SNAKE, tasks=(REVERSE,)),
            Method(encoder=WHOLE, tasks=(COPY, REVERSE)),
            Method(encoder=RoPE(), tasks=(COPY, REVERSE)),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(12, 24, 48, 120, 240, 600, 1200), examples=(512,) * 5 + (64,) * 2),
        seeds=(0, 1, 2),
    )
