"""Every encoder and every frequency map on copy, a little and far beyond the training length.

Command:
    python -m experiments.compare configs/encoders.py --out out/encoders

Cost: 49 minutes on 2 CPU cores that other work shared (one run).

Chosen: nothing was tuned here. The settings are the quickstart's, which were chosen for RoPE and Learned on lengths up to 12
alone. A low score at 12 therefore says that an encoder learns slowly under these settings, and not that it is worse than
others.

Expected (results/encoders): at 12, exact match above 0.93 in every seed except for NoPE (0.36-0.45) and HardALiBi (0.71-0.79).
At 18, above 0.80 in every seed for ALiBi, Kerple and Fire only. At 24, 0.75-0.77 for Kerple (log). At 48, no mean above 0.13.
"""

from rope_jax import (
    NTK,
    ALiBi,
    Compose,
    CoPE,
    DynamicLinear,
    DynamicNTK,
    Encoder,
    Fire,
    FrequencyMap,
    HardALiBi,
    Kerple,
    Learned,
    Linear,
    Llama3,
    LogitScale,
    LogN,
    LongRoPE,
    NoPE,
    Proportional,
    Resonance,
    RoPE,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    XPos,
    YaRN,
)
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig, Variant
from rope_jax.tasks import Copy

TASK = Copy(alphabet=16)
TRAINED = TASK.input_length(12)  # 26 input positions
PAIRS = 8  # of RoPE: half of the 16 features of a head

MAPS: dict[str, FrequencyMap] = {
    "Linear 2": Linear(factor=2.0),
    "NTK 2": NTK(factor=2.0),
    "DynamicLinear": DynamicLinear(original_length=TRAINED),
    "DynamicNTK": DynamicNTK(original_length=TRAINED),
    "YaRN 2": YaRN(factor=2.0, original_length=TRAINED),
    # no list was searched for so small a model: these grow evenly from 1 for the fastest pair to 2 for the slowest
    "LongRoPE 2": LongRoPE(
        short_factor=(1.0,) * PAIRS,
        long_factor=tuple(1 + i / (PAIRS - 1) for i in range(PAIRS)),
        original_length=TRAINED,
        factor=2.0,
    ),
    "Llama3 2": Llama3(factor=2.0, original_length=TRAINED),
    "Proportional 0.75": Proportional(fraction=0.75),
    "Resonance": Resonance(),
}
PROPORTIONAL = RoPE(scaling=Proportional(fraction=0.75))
NAMES: dict[Encoder, str] = {PROPORTIONAL: "RoPE trained with Proportional 0.75"}  # of the others, names are derived


def experiment() -> Experiment:
    alone: tuple[Encoder, ...] = (
        NoPE(),
        Sinusoidal(),
        Learned(max_length=128),
        ALiBi(),
        HardALiBi(masked_heads=2),
        T5Bias(),
        Kerple(),
        Kerple(kernel="power"),
        Fire(),
        TransformerXL(),
        CoPE(),
        XPos(),
        RoPE(learn_base=True),
        RoPE(learn_angles=True),
        RoPE(rotary_fraction=0.5),
        RoPE(head_fraction=0.5),
        PROPORTIONAL,
        Compose(RoPE(), ALiBi()),
        Compose(RoPE(), LogN(original_length=TRAINED)),
    )
    rope = Method(encoder=RoPE(), variants=tuple(Variant(name=name, encoder=RoPE(scaling=s)) for name, s in MAPS.items()))
    sharpened = Method(
        encoder=Compose(RoPE(), LogitScale(scale=1.0)),
        variants=(Variant(name="logits x 1.2", encoder=Compose(RoPE(), LogitScale(scale=1.2))),),
    )
    return Experiment(
        name="encoders",
        tasks=(TASK,),
        methods=(*(Method(name=NAMES.get(encoder), encoder=encoder) for encoder in alone), rope, sharpened),
        model=ModelConfig(num_layers=2, width=64, num_heads=4),
        train=TrainConfig(steps=2000, batch_size=32, max_length=12, learning_rate=2e-3),
        evaluate=EvaluateConfig(lengths=(6, 12, 13, 14, 15, 18, 24, 48), examples=512),
        seeds=(0, 1, 2),
    )
