"""Which combination copies beyond its training length without reading separators? The first of three rounds.

Command:
    python -m experiments.compare configs/search.py --out out/search

Cost: 10 minutes on 2 CPU cores that other work shared (one run).

Chosen, on lengths up to 12 alone: the candidates are trained on lengths 1 to 6 and compared by exact match at 12; no longer
length was looked at. configs/search_windows.py and configs/search_narrow.py continue from the best of them. configs/chosen.py
trains what the three rounds found on lengths 1 to 12, and tests it far beyond.

In names, "a / b" means a in the first layer and b in the second, and "window 4" is RoPE within a window of four tokens.

Expected (results/search), mean of 2 seeds at 12: a layer that sees four tokens below a layer that sees content alone, 0.669 (by
HardALiBi) and 0.646 (by a window). ALiBi with slopes x 4, 0.484. RoPE over the whole length, and randomized positions, 0.000.
"""

from rope_jax import ALiBi, Compose, Encoder, Fire, HardALiBi, Kerple, Layers, LogN, NoPE, RoPE, SlidingWindow, T5Bias
from rope_jax.policies import Randomized
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(6)
FAR = Randomized(max_position=256)  # ten times 12 symbols are 242 input positions

ALONE: tuple[Encoder, ...] = (
    RoPE(),
    ALiBi(),
    ALiBi(slope_scale=4.0),
    Kerple(),
    Fire(),
    Compose(RoPE(), ALiBi()),
    Compose(Kerple(), LogN(original_length=TRAINED)),
)
# position in the first layer, to gather the last few tokens; content alone in the second
PATTERNS: dict[str, Layers] = {
    "RoPE / NoPE": Layers(RoPE(), NoPE()),
    "window 4 / NoPE": Layers(Compose(RoPE(), SlidingWindow(size=4)), NoPE()),
    "window 8 / NoPE": Layers(Compose(RoPE(), SlidingWindow(size=8)), NoPE()),
    "HardALiBi(masked_heads=4) / NoPE": Layers(HardALiBi(masked_heads=4), NoPE()),
    "ALiBi(slope_scale=4.0) / NoPE": Layers(ALiBi(slope_scale=4.0), NoPE()),
    "Kerple / NoPE": Layers(Kerple(), NoPE()),
    "T5Bias / NoPE": Layers(T5Bias(), NoPE()),
    "RoPE + ALiBi(slope_scale=4.0) / NoPE": Layers(Compose(RoPE(), ALiBi(slope_scale=4.0)), NoPE()),
    "window 8 / LogN": Layers(Compose(RoPE(), SlidingWindow(size=8)), LogN(original_length=TRAINED)),
    "Kerple / LogN": Layers(Kerple(), LogN(original_length=TRAINED)),
    "window 8 / Kerple": Layers(Compose(RoPE(), SlidingWindow(size=8)), Kerple()),
}
RANDOMIZED: dict[str, Encoder] = {"RoPE, randomized": RoPE(), "Kerple, randomized": Kerple(), "Fire, randomized": Fire()}


def experiment() -> Experiment:
    return Experiment(
        name="search",
        tasks=(TASK,),
        methods=(
            *(Method(encoder=encoder) for encoder in ALONE),
            *(Method(name=name, encoder=encoder) for name, encoder in PATTERNS.items()),
            *(Method(name=name, encoder=encoder, policy=FAR) for name, encoder in RANDOMIZED.items()),
        ),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=6, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 9, 12), examples=512),
        seeds=(0, 1),
    )
