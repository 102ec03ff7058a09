"""The second round of configs/search.py: other windows in the first layer, and other encoders in the second.

Command:
    python -m experiments.compare configs/search_windows.py --out out/search_windows

Cost: 6 minutes on 2 CPU cores that other work shared (one run).

Chosen, on lengths up to 12 alone, after the first round had been seen: models are trained on lengths 1 to 6 and compared by
exact match at 12, as there; no longer length was looked at. Names are as there, too.

Expected (results/search_windows), mean of 2 seeds at 12: a window of three tokens below NoPE, 0.777. A window of four,
0.646-0.672, whatever is in the second layer. A window of five, 0.122, and of six, 0.000.
"""

from rope_jax import ALiBi, Compose, Encoder, HardALiBi, Kerple, Layers, LogN, NoPE, RoPE, SlidingWindow
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(6)


def window(size: int, base: float = 10_000.0) -> Encoder:
    return Compose(RoPE(base=base), SlidingWindow(size=size))


CANDIDATES: dict[str, Encoder | Layers] = {
    "window 3 / NoPE": Layers(window(3), NoPE()),
    "window 5 / NoPE": Layers(window(5), NoPE()),
    "window 6 / NoPE": Layers(window(6), NoPE()),
    "window 4, base 10 / NoPE": Layers(window(4, base=10.0), NoPE()),
    "window 4 / LogN": Layers(window(4), LogN(original_length=TRAINED)),
    "window 4 / Kerple": Layers(window(4), Kerple()),
    "window 4 / ALiBi": Layers(window(4), ALiBi()),
    "HardALiBi(masked_heads=4) / Kerple": Layers(HardALiBi(masked_heads=4), Kerple()),
    "ALiBi(slope_scale=8.0)": ALiBi(slope_scale=8.0),
    "ALiBi(slope_scale=16.0)": ALiBi(slope_scale=16.0),
}


def experiment() -> Experiment:
    return Experiment(
        name="search, second round",
        tasks=(TASK,),
        methods=tuple(Method(name=name, encoder=encoder) for name, encoder in CANDIDATES.items()),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=6, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 9, 12), examples=512),
        seeds=(0, 1),
    )
