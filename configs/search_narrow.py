"""The third round of configs/search.py: narrower windows still, with other encoders in the second layer.

Command:
    python -m experiments.compare configs/search_narrow.py --out out/search_narrow

Cost: 6 minutes on 2 CPU cores that other work shared (one run).

Chosen, on lengths up to 12 alone, after the second round had been seen: models are trained on lengths 1 to 6 and compared by
exact match at 12, as there; no longer length was looked at. Names are those of configs/search.py.

Expected (results/search_narrow), mean of 2 seeds at 12: three tokens in the first layer, by HardALiBi, and NoPE in the second,
0.785. Three tokens by a window, and LogN in the second, 0.781. A window of two tokens, 0.033.
"""

from rope_jax import Compose, HardALiBi, Kerple, Layers, LogN, NoPE, RoPE, SlidingWindow
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(6)
THREE = Compose(RoPE(), SlidingWindow(size=3))

CANDIDATES: dict[str, Layers] = {
    "window 2 / NoPE": Layers(Compose(RoPE(), SlidingWindow(size=2)), NoPE()),
    "window 3 / LogN": Layers(THREE, LogN(original_length=TRAINED)),
    "window 3 / Kerple": Layers(THREE, Kerple()),
    "HardALiBi(masked_heads=3) / NoPE": Layers(HardALiBi(masked_heads=3), NoPE()),
    "HardALiBi(masked_heads=4) / LogN": Layers(HardALiBi(masked_heads=4), LogN(original_length=TRAINED)),
}


def experiment() -> Experiment:
    return Experiment(
        name="search, third round",
        tasks=(TASK,),
        methods=tuple(Method(name=name, encoder=encoder) for name, encoder in CANDIDATES.items()),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=6, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 9, 12), examples=512),
        seeds=(0, 1),
    )
