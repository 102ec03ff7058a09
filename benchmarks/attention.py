"""`attention`: what attention costs in time and in memory.

Time, of softmax(q k^T / sqrt(D)) v under a causal mask, forward and backward:

ours        rope_jax.model.attention.attend: in blocks of queries, which the backward pass computes again
reference   rope_jax.model.attention.attend_reference: all scores at once
jax.nn      jax.nn.dot_product_attention, XLA's form
torch       scaled_dot_product_attention, eager, one thread per core (benchmarks/contenders/pytorch.py)

Memory, the bytes that XLA allocates for temporary values, in addition to arguments and results: of a model with each of the
encoders, at one length and at twice that length.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from benchmarks import harness
from benchmarks.harness import Benchmark, Row
from rope_jax.encoders.base import Encoder
from rope_jax.encoders.positions import Positions
from rope_jax.model.attention import attend, attend_reference
from rope_jax.model.implementation import Implementation
from rope_jax.model.transformer import functional
from rope_jax.study.serialization import described
from rope_jax.study.settings import ModelConfig
from rope_jax.training import devices

BASELINE = "ours"
DIRECTIONS = ("forward", "backward")
MAX_GROWTH = 2.2  # the target: of memory, at twice the length
VOCABULARY = 20

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class AttentionBenchmark(Benchmark):
    """What attention costs in time and in memory.

    Attributes:
      lengths: positions at which time is measured.
      tokens: examples times positions; short lengths have many examples.
      num_heads: attention heads.
      head_dim: features of a head.
      memory_length: positions at which memory is measured, and at twice as many; 0 leaves memory out.
    """

    lengths: tuple[int, ...] = (128, 512, 2048)
    tokens: int = 4096
    num_heads: int = 8
    head_dim: int = 8
    memory_length: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        harness.require_positive(self, "tokens", "num_heads", "head_dim")
        for length in self.lengths:
            if length < 1:
                raise ValueError(f"--lengths must hold lengths of at least 1, got {length}")
        if self.memory_length < 0:
            raise ValueError(f"--memory-length must not be negative, got {self.memory_length}; 0 leaves memory out")

    @property
    def packages(self) -> tuple[str, ...]:
        return ("torch",)

    def run(self, log: Callable[[str], None]) -> list[Row]:
        devices.require()
        if reason := harness.why_missing(["torch"]):
            log(f"torch: {reason}")
        rows = []
        for length in self.lengths:
            log(f"{length} positions ...")
            examples = max(1, self.tokens // length)
            q, k, v, w = jax.random.normal(jax.random.key(0), (4, examples, length, self.num_heads, self.head_dim))
            for direction, calls in contenders(q, k, v, w).items():
                figures = harness.summary(harness.interleaved(calls, self.rounds), BASELINE)
                settings = {"direction": direction, "length": length, "examples": examples, "rounds": self.rounds}
                rows += [{"contender": name, **values, **settings} for name, values in figures.items()]
        return rows + (self.memory(log) if self.memory_length else [])

    def memory(self, log: Callable[[str], None]) -> list[Row]:
        """Bytes by encoder, direction and length."""
        once, twice = self.memory_length, 2 * self.memory_length
        model = ModelConfig(num_layers=2, width=self.num_heads * self.head_dim, num_heads=self.num_heads)
        rows = []
        for encoder in encoders(twice):
            log(f"memory of {described(encoder)} ...")
            for direction in DIRECTIONS:
                at_once, at_twice = (temporary_bytes(model, encoder, length, direction) for length in (once, twice))
                sizes = {"bytes": at_once, "bytes_at_twice": at_twice, "growth": round(at_twice / at_once, 4)}
                settings = {"encoder": described(encoder), "direction": direction, "length": once}
                rows.append({"contender": BASELINE, **settings, **sizes})
        return rows

    def table(self, rows: list[Row]) -> str:
        lines = [
            [row["length"], row["direction"], row["contender"], f"{row['median_seconds'] * 1e3:.3g}", harness.ratio_text(row)]
            for row in rows
            if "ratio" in row
        ]
        text = harness.markdown(["positions", "direction", "contender", "ms", "times ours"], lines)
        text += f"\n\n{self.num_heads} heads of {self.head_dim} features: {harness.ROUNDS.format(rounds=self.rounds)}"
        memory = [row for row in rows if "bytes" in row]
        return f"{text}\n\n{self.memory_table(memory)}" if memory else text

    def memory_table(self, rows: list[Row]) -> str:
        """The rows about memory for a reader."""
        header = ["encoder", "direction", *(f"MiB at {n}" for n in (self.memory_length, 2 * self.memory_length)), "growth"]
        lines = [
            [
                *(row[name] for name in ("encoder", "direction")),
                *(f"{row[name] / 2**20:.1f}" for name in ("bytes", "bytes_at_twice")),
                row["growth"],
            ]
            for row in rows
        ]
        largest = max(row["growth"] for row in rows)
        return (
            f"{harness.markdown(header, lines)}\n\nOne example, 2 layers. Twice the length takes at most {largest:.2f} times the "
            f"memory; the target is {MAX_GROWTH}."
        )


def encoders(max_length: int) -> tuple[Encoder, ...]:
    """The encoders whose memory is measured."""
    added = (rj.NoPE(), rj.Sinusoidal(), rj.Learned(max_length=max_length))
    rotary = (rj.RoPE(), rj.XPos())
    slopes = (rj.ALiBi(), rj.HardALiBi(masked_heads=1))
    biases = (rj.T5Bias(), rj.Kerple(), rj.Fire(), rj.TransformerXL(), rj.CoPE(), rj.SlidingWindow(size=64))
    return (*added, *rotary, *slopes, *biases)


def contenders(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> dict[str, Calls]:
    """For each direction the calls of all contenders.

    Args:
      q, k, v: float32 [B, T, H, D].
      w: of the same shape; "backward" is the gradient of sum(w * attention(q, k, v)).
    """
    positions = Positions(query=jnp.arange(q.shape[1]))
    functions = {
        BASELINE: partial(attend, positions=positions),
        "reference": partial(attend_reference, positions=positions),
        "jax.nn": partial(jax.nn.dot_product_attention, is_causal=True, implementation="xla"),
    }
    by_name = {name: compiled(function, (q, k, v), w) for name, function in functions.items()}
    if harness.why_missing(["torch"]) is None and jax.default_backend() == "cpu":
        pytorch = importlib.import_module("benchmarks.contenders.pytorch")
        by_name["torch"] = pytorch.attention(*(np.asarray(x) for x in (q, k, v, w)))
    return {direction: {name: calls[direction] for name, calls in by_name.items()} for direction in DIRECTIONS}


def compiled(function: Callable[..., jax.Array], inputs: tuple[jax.Array, ...], w: jax.Array) -> Calls:
    """The calls of a JAX function's value and of its gradient, by direction."""
    forward, backward = jax.jit(function), jax.jit(jax.grad(lambda *inputs: jnp.sum(w * function(*inputs)), argnums=(0, 1, 2)))
    return {
        "forward": lambda: jax.block_until_ready(forward(*inputs)),
        "backward": lambda: jax.block_until_ready(backward(*inputs)),
    }


def temporary_bytes(model: ModelConfig, encoder: Encoder, length: int, direction: str) -> int:
    """Bytes for temporary values of one example; as in the package, layers are one loop in the forward direction alone."""
    init, apply = functional(model, VOCABULARY, encoder, implementation=Implementation(scan_layers=direction == "forward"))
    positions = Positions(query=jnp.arange(length), length=jnp.array([length]))

    def total(params: Any, tokens: jax.Array) -> jax.Array:
        return jnp.sum(apply(params, tokens, positions) ** 2)

    function = total if direction == "forward" else jax.grad(total)
    shapes = (jax.eval_shape(init, jax.random.key(0)), jax.ShapeDtypeStruct((1, length), jnp.int32))
    memory: Any = jax.jit(function).lower(*shapes).compile().memory_analysis()
    return memory.temp_size_in_bytes
