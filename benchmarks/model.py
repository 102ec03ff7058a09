"""The flags that benchmarks of a whole model share: its sizes and the batch."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.harness import Benchmark, Row
from rope_jax import RoPE
from rope_jax.study.config import Cell, Method
from rope_jax.study.settings import EvaluateConfig, ModelConfig, TrainConfig
from rope_jax.tasks import Reverse

SCHEDULE_STEPS = 1000  # of the learning rate's schedule; far fewer steps are timed


@dataclass(frozen=True, kw_only=True)
class ModelBenchmark(Benchmark):
    """A benchmark of a model with RoPE that reverses strings.

    Attributes:
      rounds: how often each contender is timed; the median counts.
      batch_size: examples per step.
      num_layers: blocks.
      width: features of the residual stream.
      num_heads: attention heads.
      compute_dtype: dtype of matrix products.
    """

    rounds: int = 5
    batch_size: int = 128
    num_layers: int = 5
    width: int = 64
    num_heads: int = 8
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def packages(self) -> tuple[str, ...]:
        return ("flax", "optax")

    @property
    def settings(self) -> Row:
        """The fields that every row records."""
        names = ("batch_size", "num_layers", "width", "num_heads", "compute_dtype", "rounds")
        return {name: getattr(self, name) for name in names}

    def cell(self, length: int, dropout: float, *, replicas: int, shortest: int | None = None) -> Cell:
        """What is trained or evaluated.

        Args:
          length: symbols of the longest example.
          dropout: probability.
          replicas: how many seeds.
          shortest: symbols of the shortest example; None means that all have the same length.

        Raises:
          ValueError: sizes that do not fit together.
        """
        return Cell(
            task=Reverse(alphabet=16),
            method=Method(encoder=RoPE()),
            model=ModelConfig(
                num_layers=self.num_layers, width=self.width, num_heads=self.num_heads, compute_dtype=self.compute_dtype
            ),
            train=TrainConfig(
                steps=SCHEDULE_STEPS,
                batch_size=self.batch_size,
                min_length=length if shortest is None else shortest,
                max_length=length,
                dropout=dropout,
            ),
            evaluate=EvaluateConfig(lengths=(length,)),
            seeds=tuple(range(replicas)),
        )
