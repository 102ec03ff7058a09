"""Functions that rotate one array, in this package and in other libraries: the contenders of `rotate`.

The PyTorch functions get [B, H, T, D], contiguous, the axes they are made for, and as many threads as XLA. Forward runs under
no_grad. Backward is the vjp alone, of sum(w * rotated x) for a fixed w; in PyTorch on a graph made before.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rope_jax as rj
from rope_jax.encoders.rotary.functional import Layout

BASELINE = "scaling"
LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """The arrays of one layout and dtype.

    Attributes:
      layout: which features form a pair.
      x, w: [B, T, H, D], the array to rotate, and the cotangent.
      cos, sin: float32 [T, D/2].
    """

    layout: Layout
    x: jax.Array
    w: jax.Array
    cos: jax.Array
    sin: jax.Array


def _from_jax(result: Any) -> np.ndarray:
    return np.asarray(result, np.float32)


def _from_torch(result: Any) -> np.ndarray:
    return result.transpose(1, 2).float().numpy()


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to rotate x.

    Attributes:
      name: as in the rows.
      calls: case -> the timed call of each direction; a call returns when its result is computed.
      layouts: those that it has.
      modules: what must be importable.
      to_numpy: converts a result to float32 [B, T, H, D].
    """

    name: str
    calls: Callable[[Case], Calls]
    layouts: tuple[Layout, ...] = LAYOUTS
    modules: tuple[str, ...] = ()
    to_numpy: Callable[[Any], np.ndarray] = _from_jax

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions that it needs."""
        return tuple(module.partition(".")[0].replace("_", "-") for module in self.modules)


def compiled(rotate: Callable[[jax.Array, jax.Array, jax.Array], jax.Array], case: Case) -> Calls:
    """The calls of a JAX function of (x, cos, sin)."""

    def vjp(w: jax.Array, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        _, pull_back = jax.vjp(lambda x: rotate(x, cos, sin), x)
        return pull_back(w)[0]

    forward, backward = jax.jit(rotate), jax.jit(vjp)
    return {
        "forward": lambda: forward(case.x, case.cos, case.sin).block_until_ready(),
        "backward": lambda: backward(case.w, case.x, case.cos, case.sin).block_until_ready(),
    }


def scaling(case: Case) -> Calls:
    """x * s, which does not rotate: the limit."""
    return compiled(lambda x, cos, sin: x * jnp.asarray(1.5, x.dtype), case)


def ours(case: Case) -> Calls:
    """rope_jax.rotate."""
    return compiled(lambda x, cos, sin: rj.rotate(x, cos, sin, layout=case.layout), case)


def concatenate(case: Case) -> Calls:
    """Two halves joined by jnp.concatenate."""

    def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cos, sin = cos[None, :, None, :], sin[None, :, None, :]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)

    return compiled(rotate, case)


def equinox(case: Case) -> Calls:
    """eqx.nn.RotaryPositionalEmbedding of [T, D], with float32 tables, vmapped over batch and heads, compiled."""
    module = importlib.import_module("equinox").nn.RotaryPositionalEmbedding(case.x.shape[-1], dtype=jnp.float32)
    over_heads = jax.vmap(module, in_axes=1, out_axes=1)
    return compiled(lambda x, cos, sin: jax.vmap(over_heads)(x), case)


def eager(rotate: Callable[[Any], Any], case: Case) -> Calls:
    """The calls of a PyTorch function of [B, H, T, D]."""
    torch = importlib.import_module("torch")
    x, w = to_torch(case.x).transpose(1, 2).contiguous(), to_torch(case.w).transpose(1, 2).contiguous()
    tracked = x.detach().requires_grad_()
    rotated = rotate(tracked)

    def forward() -> Any:
        with torch.no_grad():
            return rotate(x)

    return {"forward": forward, "backward": lambda: torch.autograd.grad(rotated, tracked, w, retain_graph=True)[0]}


def to_torch(x: jax.Array) -> Any:
    """A PyTorch tensor of the same numbers and dtype."""
    torch = importlib.import_module("torch")
    return torch.from_numpy(np.array(x, np.float32)).to(getattr(torch, x.dtype.name))


def transformers(case: Case) -> Calls:
    """Llama's apply_rotary_pos_emb in eager PyTorch, with q = x and a k without heads, so that it rotates one array.

    cos and sin have x's dtype, as its models make them, so bfloat16 is rotated in bfloat16.
    """
    apply = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    cos, sin = (to_torch(jnp.tile(table, (1, 2)).astype(case.x.dtype))[None] for table in (case.cos, case.sin))
    return eager(lambda x: apply(x, x[:, :0], cos, sin)[0], case)


def rotary_embedding_torch(case: Case) -> Calls:
    """apply_rotary_emb of rotary-embedding-torch in eager PyTorch, with float32 angles made before.

    Each call computes cos and sin. Its rotate_queries_or_keys would make bfloat16 positions for a bfloat16 x, and neighbouring
    positions above 256 are equal in bfloat16.
    """
    torch, library = importlib.import_module("torch"), importlib.import_module("rotary_embedding_torch")
    _, length, _, head_dim = case.x.shape
    angles = library.RotaryEmbedding(head_dim)(torch.arange(length, dtype=torch.float32)).detach()
    return eager(lambda x: library.apply_rotary_emb(angles, x), case)


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
