"""Exact copying and reversal at a hundred times the training length, from rows and columns read off the separators.

Command:
    python -m experiments.compare configs/hundredfold.py --out out/hundredfold
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.policies import Grid
from rope_jax.tasks import Copy, Reverse

COPY, COPY_BITS, REVERSE = (
    Copy(alphabet=16, end_marker=True),
    Copy(alphabet=2, end_marker=True),
    Reverse(alphabet=16, end_marker=True),
)
COPY_NO_MARKER, REVERSE_NO_MARKER = Copy(alphabet=16), Reverse(alphabet=16)

BOTH_AXES = RoPE(sections=(4, 4), arrangement="axial")  # of 8 pairs: rows and columns turn 4 each, with the same frequencies
COLUMNS = RoPE(sections=(0, 8))  # all pairs read the columns
DECAY = ALiBi(axis=1, slope_scale=16.0)  # on columns
FORWARD, SNAKE = Grid(order="forward"), Grid(order="snake")

WHOLE = (  # forward knows the separators; snake the task's direction besides, for reversal alone
    Method(encoder=Compose(BOTH_AXES, DECAY), policy=FORWARD, tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER)),
    Method(encoder=Compose(BOTH_AXES, DECAY), policy=SNAKE, tasks=(REVERSE, REVERSE_NO_MARKER)),
)
ABLATED = (
    Method(encoder=BOTH_AXES, policy=FORWARD, tasks=(COPY,)),
    Method(encoder=BOTH_AXES, policy=SNAKE, tasks=(REVERSE,)),
    Method(encoder=Compose(COLUMNS, DECAY), policy=FORWARD, tasks=(COPY,)),
    Method(encoder=Compose(COLUMNS, DECAY), policy=SNAKE, tasks=(REVERSE,)),
    Method(encoder=Compose(RoPE(), ALiBi(slope_scale=16.0)), tasks=(COPY, REVERSE)),  # contiguous positions
)


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold",
        tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER, REVERSE_NO_MARKER),
        methods=(*WHOLE, *ABLATED),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(12, 24, 48, 120, 240, 600, 1200), examples=(512,) * 5 + (64,) * 2),
        seeds=(0, 1, 2),
    )
