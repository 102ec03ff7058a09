"""`attention`: what attention costs in time and in memory.

Time, of softmax(q k^T / sqrt(D)) v under a causal mask, forward and backward, beside

ours        rope_jax.model.attention.attend: in blocks of queries, computed anew in the backward pass
reference   rope_jax.model.attention.attend_reference, compiled: all scores at once
jax.nn      jax.nn.dot_product_attention, XLA's form
torch       scaled_dot_product_attention, eager, on [B, H, T, D] that is contiguous, as many threads as cores

Memory, what XLA sets aside beside arguments and results for a model with each of the encoders, at one length and at twice that.
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
from rope_jax.model.transformer import functional
from rope_jax.study.config import ModelConfig
from rope_jax.study.serialization import described

DIRECTIONS = ("forward", "backward")
MOST_GROWTH = 2.2


@dataclass(frozen=True, kw_only=True)
class AttentionBenchmark(Benchmark):
    """What attention costs in time and in memory.

    Attributes:
      lengths: positions, of which time is measured.
      tokens: examples times positions; short lengths have many examples.
      heads: attention heads.
      head_dim: features of a head.
      memory_length: positions at which memory is read off, and at twice as many; 0 leaves memory out.
    """

    lengths: tuple[int, ...] = (128, 512, 2048)
    tokens: int = 4096
    heads: int = 8
    head_dim: int = 8
    memory_length: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tokens", "heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for length in self.lengths:
            if length < 1:
                raise ValueError(f"--lengths must hold lengths of at least 1, got {length}")
        if self.memory_length < 0:
            raise ValueError(f"--memory-length must not be negative, got {self.memory_length}; 0 leaves memory out")

    @property
    def packages(self) -> tuple[str, ...]:
        return ("torch",)

    def run(self, say: Callable[[str], None]) -> list[Row]:
        if why := harness.why_missing(["torch"]):
            say(f"torch: {why}")
        rows = []
        for length in self.lengths:
            say(f"{length} positions ...")
            q, k, v, w = jax.random.normal(
                jax.random.key(0), (4, max(1, self.tokens // length), length, self.heads, self.head_dim)
            )
            for direction, calls in timed(q, k, v, w).items():
                found = harness.summary(harness.interleaved(calls, self.rounds), "ours")
                about = {"direction": direction, "length": length, "examples": q.shape[0], "rounds": self.rounds}
                rows += [{"contender": name, **figures, **about} for name, figures in found.items()]
        return rows + (self.memory(say) if self.memory_length else [])

    def memory(self, say: Callable[[str], None]) -> list[Row]:
        """Bytes by encoder, direction and length."""
        longest = 2 * self.memory_length
        encoders = (
            *(
                rj.NoPE(),
                rj.Sinusoidal(),
                rj.Learned(max_length=longest),
                rj.RoPE(),
                rj.XPos(),
                rj.ALiBi(),
                rj.HardALiBi(masked_heads=1),
            ),
            *(rj.T5Bias(), rj.Kerple(), rj.Fire(), rj.TransformerXL(), rj.CoPE(), rj.SlidingWindow(size=64)),
        )
        model = ModelConfig(num_layers=2, width=self.heads * self.head_dim, num_heads=self.heads)
        rows = []
        for encoder in encoders:
            say(f"memory of {described(encoder)} ...")
            for direction in DIRECTIONS:
                few, many = (set_aside(model, encoder, length, direction) for length in (self.memory_length, longest))
                about = {"contender": "ours", "encoder": described(encoder), "direction": direction}
                rows.append(
                    {**about, "length": self.memory_length, "bytes": few, "bytes_at_twice": many, "growth": round(many / few, 4)}
                )
        return rows

    def table(self, rows: list[Row]) -> str:
        timed = [row for row in rows if "ratio" in row]
        measured = [row for row in rows if "bytes" in row]
        lines = [
            [row["length"], row["direction"], row["contender"], f"{row['median_seconds'] * 1e3:.3g}", harness.ratio_text(row)]
            for row in timed
        ]
        text = harness.markdown(["positions", "direction", "contender", "ms", "times ours"], lines)
        text += f"\n\n{self.heads} heads of {self.head_dim}: {harness.ROUNDS.format(rounds=self.rounds)}"
        if measured:
            lines = [
                [
                    row["encoder"],
                    row["direction"],
                    *(f"{row[name] / 2**20:.1f}" for name in ("bytes", "bytes_at_twice")),
                    row["growth"],
                ]
                for row in measured
            ]
            header = ["encoder", "direction", *(f"MiB at {n}" for n in (self.memory_length, 2 * self.memory_length)), "growth"]
            worst = max(row["growth"] for row in measured)
            text += f"\n\n{harness.markdown(header, lines)}\n\nOne example, 2 layers. "
            text += f"Twice the length takes at most {worst:.2f} times the memory; the target is {MOST_GROWTH}."
        return text


def timed(q: jax.Array, k: jax.Array, v: jax.Array, w: jax.Array) -> dict[str, dict[str, Callable[[], Any]]]:
    """For each direction the calls of all contenders, on [B, T, H, D]; w weighs the outputs whose gradient is taken."""
    at = Positions(query=jnp.arange(q.shape[1]))
    attending = {
        "ours": partial(attend, positions=at),
        "reference": partial(attend_reference, positions=at),
        "jax.nn": partial(jax.nn.dot_product_attention, is_causal=True, implementation="xla"),
    }
    calls: dict[str, dict[str, Callable[[], Any]]] = {direction: {} for direction in DIRECTIONS}
    for name, function in attending.items():
        calls["forward"][name], calls["backward"][name] = compiled(function, (q, k, v), w)
    if harness.why_missing(["torch"]) is None and jax.default_backend() == "cpu":
        torch = importlib.import_module("torch")
        torch.set_num_threads(harness.cores())
        *inputs, weights = (torch.from_numpy(np.array(x)).transpose(1, 2).contiguous() for x in (q, k, v, w))
        tracked = [x.clone().requires_grad_() for x in inputs]
        fused = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)

        def forward_in_torch() -> Any:
            with torch.no_grad():
                return fused(*inputs)

        calls["forward"]["torch"] = forward_in_torch
        calls["backward"]["torch"] = lambda: torch.autograd.grad((weights * fused(*tracked)).sum(), tracked)
    return calls


def compiled(
    function: Callable[..., jax.Array], inputs: tuple[jax.Array, ...], w: jax.Array
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The calls of a function's value and of its gradient."""
    forward, backward = jax.jit(function), jax.jit(jax.grad(lambda *inputs: jnp.sum(w * function(*inputs)), argnums=(0, 1, 2)))
    return lambda: jax.block_until_ready(forward(*inputs)), lambda: jax.block_until_ready(backward(*inputs))


def set_aside(model: ModelConfig, encoder: Encoder, length: int, direction: str) -> int:
    """Bytes that the compiled program needs for what it computes on the way, for one example."""
    init, apply = functional(model, 20, encoder)
    at = Positions(query=jnp.arange(length), length=jnp.array([length]))

    def total(params: Any, tokens: jax.Array) -> jax.Array:
        return jnp.sum(apply(params, tokens, at, scan_layers=direction == "forward") ** 2)

    function = total if direction == "forward" else jax.grad(total)
    shapes = (jax.eval_shape(init, jax.random.key(0)), jax.ShapeDtypeStruct((1, length), jnp.int32))
    found: Any = jax.jit(function).lower(*shapes).compile().memory_analysis()
    return found.temp_size_in_bytes
