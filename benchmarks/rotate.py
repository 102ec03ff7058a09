"""`rotate`: what turning an array costs beside scaling it, and beside other libraries.

A rotation reads an array once and writes one, as `x * s` does, so the scaling is its limit where memory is what is waited for.

The contenders compute the same function of the same numbers:

scaling                 x * s, the limit; it does not rotate
ours                    rope_jax.rotate
concatenate             two halves joined by jnp.concatenate, as it is often written in JAX
transformers            Llama's apply_rotary_pos_emb, eager PyTorch, with q = x and a k without heads, so that it turns one array;
                        cos and sin have x's dtype, as its models make them, so bfloat16 is turned in bfloat16
rotary-embedding-torch  apply_rotary_emb, eager PyTorch, with float32 angles made beforehand (rotate_queries_or_keys would make
                        bfloat16 positions for a bfloat16 x, which merge above 256); every call takes their cos and sin
equinox                 eqx.nn.RotaryPositionalEmbedding with float32 tables, vmapped over batch and heads, compiled

The two of PyTorch get [B, H, T, D] that is contiguous, the axes they are made for, and as many threads as XLA. Forward runs
under no_grad. Backward is the vjp alone, of the sum of rotated x times a fixed w, in PyTorch on a graph made before.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from benchmarks import harness
from benchmarks.harness import Benchmark, Row
from rope_jax.encoders.rotary.functional import Layout

BASELINE = "scaling"
TARGET = 1.3
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
DTYPES = ("float32", "bfloat16")
DIRECTIONS = ("forward", "backward")

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One layout and dtype.

    Attributes:
      layout: which features form a pair.
      x, w: [B, T, H, D], what is turned and the cotangent.
      cos, sin: float32 [T, D/2].
    """

    layout: Layout
    x: jax.Array
    w: jax.Array
    cos: jax.Array
    sin: jax.Array


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to turn x.

    Attributes:
      name: as in the rows.
      calls: of a case, for each direction the call that is timed; it returns when the result is there.
      layouts: which it has.
      modules: what must be importable.
      to_numpy: turns its result into float32 [B, T, H, D].
    """

    name: str
    calls: Callable[[Case], Calls]
    layouts: tuple[Layout, ...] = LAYOUTS
    modules: tuple[str, ...] = ()
    to_numpy: Callable[[Any], np.ndarray] = lambda result: np.asarray(result, np.float32)

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions it needs."""
        return tuple(module.partition(".")[0].replace("_", "-") for module in self.modules)


def compiled(turn: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], case: Case) -> Calls:
    """The calls of a JAX function of (x, cos, sin)."""

    def pulled_back(w: jax.Array, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        _, pull_back = jax.vjp(lambda x: turn(x, cos, sin), x)
        return pull_back(w)[0]

    forward, backward = jax.jit(turn), jax.jit(pulled_back)
    return {
        "forward": lambda: forward(case.x, case.cos, case.sin).block_until_ready(),
        "backward": lambda: backward(case.w, case.x, case.cos, case.sin).block_until_ready(),
    }


def scaling(case: Case) -> Calls:
    """x * s."""
    return compiled(lambda x, cos, sin: x * jnp.asarray(1.5, x.dtype), case)


def ours(case: Case) -> Calls:
    """rope_jax.rotate."""
    return compiled(lambda x, cos, sin: rj.rotate(x, cos, sin, layout=case.layout), case)


def concatenate(case: Case) -> Calls:
    """Two halves joined."""

    def turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = cos[None, :, None, :], sin[None, :, None, :]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

    return compiled(turn, case)


def equinox(case: Case) -> Calls:
    """eqx.nn.RotaryPositionalEmbedding, which takes [T, D]."""
    module = importlib.import_module("equinox").nn.RotaryPositionalEmbedding(case.x.shape[-1], dtype=jnp.float32)
    over_heads = jax.vmap(module, in_axes=1, out_axes=1)
    return compiled(lambda x, cos, sin: jax.vmap(over_heads)(x), case)


def eager(turn: Callable[[Any], Any], case: Case) -> Calls:
    """The calls of a PyTorch function of [B, H, T, D]."""
    torch = importlib.import_module("torch")
    x, w = to_torch(case.x).transpose(1, 2).contiguous(), to_torch(case.w).transpose(1, 2).contiguous()
    tracked = x.detach().requires_grad_()
    turned = turn(tracked)

    def forward() -> Any:
        with torch.no_grad():
            return turn(x)

    return {"forward": forward, "backward": lambda: torch.autograd.grad(turned, tracked, w, retain_graph=True)[0]}


def to_torch(x: jax.Array) -> Any:
    """A PyTorch tensor of the same numbers and dtype."""
    torch = importlib.import_module("torch")
    return torch.from_numpy(np.array(x, np.float32)).to(getattr(torch, x.dtype.name))


def transformers(case: Case) -> Calls:
    """Llama's rotation in PyTorch."""
    apply = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    cos, sin = (to_torch(jnp.tile(table, (1, 2)).astype(case.x.dtype))[None] for table in (case.cos, case.sin))
    return eager(lambda x: apply(x, x[:, :0], cos, sin)[0], case)


def rotary_embedding_torch(case: Case) -> Calls:
    """lucidrains' rotation in PyTorch."""
    torch, library = importlib.import_module("torch"), importlib.import_module("rotary_embedding_torch")
    _, length, _, head_dim = case.x.shape
    angles = library.RotaryEmbedding(head_dim)(torch.arange(length, dtype=torch.float32)).detach()
    return eager(lambda x: library.apply_rotary_emb(angles, x), case)


def _from_torch(result: Any) -> np.ndarray:
    return result.transpose(1, 2).float().numpy()


CONTENDERS = (
    Contender(name="ours", calls=ours),
    Contender(name=BASELINE, calls=scaling),
    Contender(name="concatenate", calls=concatenate, layouts=("half",)),
    Contender(
        name="transformers",
        calls=transformers,
        layouts=("half",),
        modules=("torch", "transformers.models.llama.modeling_llama"),
        to_numpy=_from_torch,
    ),
    Contender(
        name="rotary-embedding-torch",
        calls=rotary_embedding_torch,
        layouts=("interleaved",),
        modules=("torch", "rotary_embedding_torch"),
        to_numpy=_from_torch,
    ),
    Contender(name="equinox", calls=equinox, layouts=("half",), modules=("equinox",)),
)


@dataclass(frozen=True, kw_only=True)
class RotateBenchmark(Benchmark):
    """Time rope_jax.rotate beside a plain scaling, and beside other libraries where they are installed.

    Attributes:
      batch: B of x [B, T, H, D].
      length: T.
      heads: H.
      head_dim: D; all of it is turned.
    """

    batch: int = 8
    length: int = 2048
    heads: int = 16
    head_dim: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "length", "heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.head_dim % 2:
            raise ValueError(f"--head-dim must be even, got {self.head_dim}: features are turned in pairs")

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(package for contender in CONTENDERS for package in contender.packages))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, T, H, D]."""
        return self.batch, self.length, self.heads, self.head_dim

    def case(self, layout: Layout, dtype: str) -> Case:
        """The arrays of a layout and dtype."""
        x, w = (jax.random.normal(key, self.shape, jnp.dtype(dtype)) for key in jax.random.split(jax.random.key(0)))
        cos, sin = rj.rotary_tables(rj.rotary_frequencies(self.head_dim), rj.positions.contiguous(self.length))
        return Case(layout, x, w, cos, sin)

    def run(self, say: Callable[[str], None]) -> list[Row]:
        present = available(say)
        say(f"{harness.cores()} threads; x is {list(self.shape)}")
        rows = []
        for layout in LAYOUTS:
            for dtype in DTYPES:
                say(f"{layout} {dtype} ...")
                case = self.case(layout, dtype)
                calls = {contender.name: contender.calls(case) for contender in present if layout in contender.layouts}
                for direction in DIRECTIONS:
                    timed = {name: of[direction] for name, of in calls.items()}
                    found = harness.summary(harness.interleaved(timed, self.rounds), BASELINE)
                    about = {"layout": layout, "dtype": dtype, "direction": direction}
                    size = {"shape": list(self.shape), "rounds": self.rounds}
                    rows += [{"contender": name, **about, **figures, **size} for name, figures in found.items()]
        return rows

    def table(self, rows: list[Row]) -> str:
        lines: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            line = lines.setdefault((row["layout"], row["dtype"], row["contender"]), [])
            line += [f"{row['median_seconds'] * 1e3:.3g}", harness.ratio_text(row)]
        header = ["layout", "dtype", "contender", *(title for way in DIRECTIONS for title in (f"{way}, ms", f"{way}, ratio"))]
        text = harness.markdown(header, [[*key, *line] for key, line in lines.items()])
        forward = [row for row in rows if row["contender"] == "ours" and row["direction"] == "forward"]
        worst = max(forward, key=lambda row: row["ratio"])
        return (
            f"{text}\n\nx is {list(self.shape)}. A ratio is to the scaling of the same round: median of {self.rounds} rounds, in "
            f"brackets the smallest and the largest.\nOurs, forward, is at most {worst['ratio']:.2f} times the scaling "
            f"({worst['layout']} {worst['dtype']}); the target is {TARGET}."
        )


def available(say: Callable[[str], None]) -> list[Contender]:
    """The contenders whose libraries are there; says which are not."""
    present = []
    for contender in CONTENDERS:
        if "torch" in contender.modules and jax.default_backend() != "cpu":
            why: str | None = "left out: it is compared on a CPU only"
        else:
            why = harness.why_missing(contender.modules)
        if why is None:
            present.append(contender)
        else:
            say(f"{contender.name}: {why}")
    if any("torch" in contender.modules for contender in present):
        importlib.import_module("torch").set_num_threads(harness.cores())
    return present
