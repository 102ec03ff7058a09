"""How far the combinations that configs/search.py chose can copy: trained on lengths 1 to 12, without separators.

Command:
    python -m experiments.compare configs/chosen.py --out out/chosen

Cost: 8 minutes on 2 CPU cores that other work shared (one run).

Chosen, on lengths up to 12 alone, by the three rounds of the search: its best three, and the best that is the same in every
layer. Names are those of configs/search.py.

Expected (results/chosen), mean of 3 seeds: HardALiBi below NoPE, 0.536 at 24 and 0.226 at 36. A window of three below NoPE or
LogN, 0.44 and 0.14-0.15. ALiBi with slopes x 4, 0.618 and 0.061. All of them 0.000 at 120.
"""

from rope_jax import ALiBi, Compose, Encoder, HardALiBi, Layers, LogN, NoPE, RoPE, SlidingWindow
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
THREE = Compose(RoPE(), SlidingWindow(size=3))

# in the order of the search: its best three, and the best that is the same in every layer
CHOSEN: dict[str, Encoder | Layers] = {
    "HardALiBi(masked_heads=3) / NoPE": Layers(HardALiBi(masked_heads=3), NoPE()),
    "window 3 / LogN": Layers(THREE, LogN(original_length=TASK.input_length(12))),
    "window 3 / NoPE": Layers(THREE, NoPE()),
    "ALiBi(slope_scale=4.0)": ALiBi(slope_scale=4.0),
}


def experiment() -> Experiment:
    return Experiment(
        name="chosen",
        tasks=(TASK,),
        methods=tuple(Method(name=name, encoder=encoder) for name, encoder in CHOSEN.items()),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(12, 18, 24, 36, 120), examples=512),
        seeds=(0, 1, 2),
    )
