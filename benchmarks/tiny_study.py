"""A study of any number of tiny trainings; what the config of the benchmark `store` imports."""

from rope_jax import RoPE
from rope_jax.optimizers import WarmupCosine
from rope_jax.study import EvaluateConfig, Experiment, Method, ModelConfig, TrainConfig
from rope_jax.tasks import Copy

SEEDS = 50  # trainings of a cell


def study(trainings: int, steps: int) -> Experiment:
    """Tiny trainings, so many or up to 49 more, in cells of 50 that differ in their learning rates and share their programs."""
    seeds = min(trainings, SEEDS)
    rates = [round(1e-3 * 1.01**i, 9) for i in range(-(-trainings // seeds))]
    return Experiment(
        name="store",
        tasks=(Copy(alphabet=8),),
        methods=tuple(Method(name=f"RoPE {rate}", encoder=RoPE(), train=(("learning_rate", rate),)) for rate in rates),
        model=ModelConfig(num_layers=1, width=32, num_heads=2, mlp_factor=2),
        train=TrainConfig(steps=steps, batch_size=32, max_length=8, schedule=WarmupCosine(warmup_steps=min(5, steps - 1))),
        evaluate=EvaluateConfig(lengths=(4, 8, 16), examples=64),
        seeds=tuple(range(seeds)),
    )
