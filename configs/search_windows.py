"""The second round of configs/search.py: what became of its best, a short window below and content alone above.

Command:
    python -m experiments.compare configs/search_windows.py --out out/search_windows

Cost: 6 minutes on 2 CPU cores that other work shared (one run).

Made after the first round was seen. Like it, chosen by models trained on lengths 1 to 6, at 12; no longer length was looked at.

Expected (results/search_windows), mean of 2 seeds at 12: a window of three tokens below NoPE 0.777; of four 0.646-0.672, whatever
is above; of five 0.122, of six 0.000.
"""

from rope_jax import ALiBi, Compose, Encoder, HardALiBi, Kerple, Layers, LogN, NoPE, RoPE, SlidingWindow
from rope_jax.study.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(6)


def window(size: int, base: float = 10_000.0) -> Encoder:
    return Compose(RoPE(base=base), SlidingWindow(size=size))


CANDIDATES: tuple[Encoder | Layers, ...] = (
    Layers(window(3), NoPE()),
    Layers(window(5), NoPE()),
    Layers(window(6), NoPE()),
    Layers(window(4, base=10.0), NoPE()),
    Layers(window(4), LogN(original_length=TRAINED)),
    Layers(window(4), Kerple()),
    Layers(window(4), ALiBi()),
    Layers(HardALiBi(masked_heads=4), Kerple()),
    ALiBi(slope_scale=8.0),
    ALiBi(slope_scale=16.0),
)


def experiment() -> Experiment:
    return Experiment(
        name="search, second round",
        tasks=(TASK,),
        methods=tuple(Method(encoder=encoder) for encoder in CANDIDATES),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=6, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 9, 12), examples=512),
        seeds=(0, 1),
    )
