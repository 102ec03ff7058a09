"""The third round of configs/search.py: narrower windows still, with what sharpens or orders the content above them.

Command:
    python -m experiments.compare configs/search_narrow.py --out out/search_narrow

Cost: 6 minutes on 2 CPU cores that other work shared (one run).

Made after the second round was seen. Like it, chosen by models trained on lengths 1 to 6, at 12; no longer length was looked at.

Expected (results/search_narrow), mean of 2 seeds at 12: three tokens below, by HardALiBi, and NoPE above 0.785; by a window, and
LogN above, 0.781; a window of two tokens 0.033.
"""

from rope_jax import Compose, Encoder, HardALiBi, Kerple, Layers, LogN, NoPE, RoPE, SlidingWindow
from rope_jax.study.config import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(6)
THREE = Compose(RoPE(), SlidingWindow(size=3))

CANDIDATES: tuple[Encoder | Layers, ...] = (
    Layers(Compose(RoPE(), SlidingWindow(size=2)), NoPE()),
    Layers(THREE, LogN(original_length=TRAINED)),
    Layers(THREE, Kerple()),
    Layers(HardALiBi(masked_heads=3), NoPE()),
    Layers(HardALiBi(masked_heads=4), LogN(original_length=TRAINED)),
)


def experiment() -> Experiment:
    return Experiment(
        name="search, third round",
        tasks=(TASK,),
        methods=tuple(Method(encoder=encoder) for encoder in CANDIDATES),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=6, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 9, 12), examples=512),
        seeds=(0, 1),
    )
