"""`rotate`: what rotating an array costs beside scaling it, and beside other libraries.

A rotation reads an array once and writes one, as `x * s` does, so scaling is its limit where memory bandwidth decides. Contenders
compute the same function of the same numbers (benchmarks/contenders/rotation.py):

scaling                 x * s, the limit; it does not rotate
ours                    rope_jax.rotate
concatenate             two halves joined by jnp.concatenate, as it is often written in JAX
transformers            Llama's apply_rotary_pos_emb, eager PyTorch
rotary-embedding-torch  apply_rotary_emb, eager PyTorch
equinox                 eqx.nn.RotaryPositionalEmbedding, compiled
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

import rope_jax as rj
from benchmarks import harness
from benchmarks.contenders.rotation import BASELINE, CONTENDERS, LAYOUTS, Case, Contender
from benchmarks.harness import Benchmark, Row
from rope_jax.encoders.rotary.functional import Layout
from rope_jax.training import devices

TARGET = 1.3  # times the scaling
DTYPES = ("float32", "bfloat16")
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class RotateBenchmark(Benchmark):
    """What rope_jax.rotate costs beside a plain scaling, and beside other libraries where they are installed.

    Attributes:
      batch: B of x [B, T, H, D].
      length: T.
      num_heads: H.
      head_dim: D; all of it is rotated.
    """

    batch: int = 8
    length: int = 2048
    num_heads: int = 16
    head_dim: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        harness.require_positive(self, "batch", "length", "num_heads", "head_dim")
        if self.head_dim % 2:
            raise ValueError(f"--head-dim must be even, got {self.head_dim}: features are rotated in pairs")

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(package for contender in CONTENDERS for package in contender.packages))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, T, H, D]."""
        return self.batch, self.length, self.num_heads, self.head_dim

    def case(self, layout: Layout, dtype: str) -> Case:
        """The arrays of a layout and dtype."""
        x, w = (jax.random.normal(key, self.shape, jnp.dtype(dtype)) for key in jax.random.split(jax.random.key(0)))
        cos, sin = rj.rotary_tables(rj.rotary_frequencies(self.head_dim), rj.positions.contiguous(self.length))
        return Case(layout, x, w, cos, sin)

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.require()
        present = available(log)
        log(f"{harness.cores()} threads; x is {list(self.shape)}")
        rows = []
        for layout in LAYOUTS:
            for dtype in DTYPES:
                log(f"{layout} {dtype} ...")
                case = self.case(layout, dtype)
                calls = {contender.name: contender.calls(case) for contender in present if layout in contender.layouts}
                for direction in DIRECTIONS:
                    timed = {name: by_direction[direction] for name, by_direction in calls.items()}
                    figures = harness.summary(harness.interleaved(timed, self.rounds), BASELINE)
                    kind = {"layout": layout, "dtype": dtype, "direction": direction}
                    settings = {"shape": list(self.shape), "rounds": self.rounds}
                    rows += [{"contender": name, **kind, **values, **settings} for name, values in figures.items()]
        return rows

    def table(self, rows: list[Row]) -> str:
        lines: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            line = lines.setdefault((row["layout"], row["dtype"], row["contender"]), [])
            line += [f"{row['median_seconds'] * 1e3:.3g}", harness.ratio_text(row)]
        titles = (title for direction in DIRECTIONS for title in (f"{direction}, ms", f"{direction}, ratio"))
        text = harness.markdown(["layout", "dtype", "contender", *titles], [[*key, *line] for key, line in lines.items()])
        forward = [row for row in rows if row["contender"] == "ours" and row["direction"] == "forward"]
        slowest = max(forward, key=lambda row: row["ratio"])
        return (
            f"{text}\n\nx is {list(self.shape)}. A ratio is to the scaling of the same round: median of {self.rounds} rounds, in "
            f"brackets the smallest and the largest.\nOurs, forward, is at most {slowest['ratio']:.2f} times the scaling "
            f"({slowest['layout']} {slowest['dtype']}); the target is {TARGET}."
        )


def available(log: Callable[[str], None]) -> list[Contender]:
    """The contenders whose libraries are installed; logs the others with the reason."""
    present = []
    for contender in CONTENDERS:
        if "torch" in contender.modules and jax.default_backend() != "cpu":
            reason: str | None = "left out: it is compared on a CPU only"
        else:
            reason = harness.why_missing(contender.modules)
        if reason is None:
            present.append(contender)
        else:
            log(f"{contender.name}: {reason}")
    if any("torch" in contender.modules for contender in present):
        importlib.import_module("torch").set_num_threads(harness.cores())
    return present
