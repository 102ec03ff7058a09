"""Several encoders as one."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ._internal.arrays import leading
from .base import Dims, Encoder, Params, Requirements
from .positions import Positions
from .rotary.scaling.base import FrequencyMap

__all__ = ["Compose"]


@dataclass(frozen=True, init=False)
class Compose(Encoder):
    """Applies several encoders to all heads. What they add is summed; rotations follow one another in the order of the encoders.

    A bias that reads q and k (TransformerXL, CoPE) reads them rotated, as attention does.

    Formula: those of its encoders
    Extrapolates: as its encoders do
    Knows: what its encoders know

    Example:
      >>> encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
      >>> encoder.bias(encoder.prepare({}, None, dims), q, k, positions).shape  # ALiBi's
      (2, 3, 3)

    Attributes:
      encoders: the encoders, one argument each: `Compose(RoPE(), ALiBi())`.
    """

    encoders: tuple[Encoder, ...] = dataclasses.field(metadata={"positional": True})

    def __init__(self, *positional: Encoder, encoders: tuple[Encoder, ...] = ()) -> None:
        object.__setattr__(self, "encoders", require_encoders("Compose", (*positional, *encoders)))
        self.__post_init__()

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """The parameters of encoder i under "encoder<i>"; an encoder that learns nothing has no entry."""
        return init_each(self.encoders, jax.random.split(key, len(self.encoders)), dims)

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> tuple[Any, ...]:
        return prepare_each(self.encoders, params, length, dims)

    def tables(self, prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
        """The tables of each encoder; where layers differ for one of them, all have a leading axis of the layers."""
        each = tables_each(self.encoders, prepared, positions)
        layered = [encoder.requirements.per_layer for encoder in self.encoders]
        if not any(layered) or all(layered):
            return each
        num_layers = jax.tree.leaves(each[layered.index(True)])[0].shape[0]

        def repeated(x: Any) -> jax.Array:
            return jnp.broadcast_to(x, (num_layers, *jnp.shape(x)))

        return tuple(one if differs else jax.tree.map(repeated, one) for one, differs in zip(each, layered, strict=True))

    def embed(self, tables: tuple[Any, ...], x: jax.Array, positions: Positions) -> jax.Array:
        for encoder, its_tables in zip(self.encoders, tables, strict=True):
            x = encoder.embed(its_tables, x, positions)
        return x

    def rotate(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        for encoder, its_tables in zip(self.encoders, tables, strict=True):
            q, k = encoder.rotate(its_tables, q, k)
        return q, k

    def bias(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        total = None
        for encoder, its_tables in zip(self.encoders, tables, strict=True):
            bias = encoder.bias(its_tables, q, k, positions)
            total = bias if total is None else total if bias is None else _sum(total, bias)
        return total

    @property
    def requirements(self) -> Requirements:
        return Requirements.together(encoder.requirements for encoder in self.encoders)

    @property
    def retunable(self) -> frozenset[str]:
        return retunable_each(self.encoders)


def require_encoders(name: str, encoders: tuple[Any, ...]) -> tuple[Encoder, ...]:
    """The encoders of the class called `name`; raises ValueError if there is none, or if one is not an encoder."""
    for encoder in encoders:
        if not isinstance(encoder, Encoder):
            hint = f"; call it: {encoder.__name__}(...)" if isinstance(encoder, type) else ""
            hint = "; a frequency map goes into RoPE(scaling=...)" if isinstance(encoder, FrequencyMap) else hint
            hint = (
                "; put Layers outside: Layers(Compose(RoPE(), ALiBi()), NoPE())" if type(encoder).__name__ == "Layers" else hint
            )
            raise ValueError(f"{name} takes encoders, such as {name}(RoPE(), ALiBi()), got {encoder!r}{hint}")
    if not encoders:
        raise ValueError(
            f"{name} needs at least one encoder, such as {name}(RoPE(), ALiBi()); NoPE() is the encoder that does nothing"
        )
    return encoders


def init_each(encoders: Sequence[Encoder], keys: Sequence[jax.Array] | jax.Array, dims: Dims) -> Params:
    """The parameters of encoder i, drawn from key i, under "encoder<i>"; an encoder that learns nothing has no entry."""
    drawn = {f"encoder{i}": encoder.init(keys[i], dims) for i, encoder in enumerate(encoders)}
    return {name: params for name, params in drawn.items() if jax.tree.leaves(params)}


def prepare_each(encoders: Sequence[Encoder], params: Params, length: jax.Array | int | None, dims: Dims) -> tuple[Any, ...]:
    """What each encoder prepares from its entry of the parameters."""
    return tuple(encoder.prepare(params.get(f"encoder{i}", {}), length, dims) for i, encoder in enumerate(encoders))


def tables_each(encoders: Sequence[Encoder], prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
    """The tables of each encoder."""
    return tuple(encoder.tables(one, positions) for encoder, one in zip(encoders, prepared, strict=True))


def retunable_each(encoders: Sequence[Encoder]) -> frozenset[str]:
    """The options of several encoders that may change on a trained model, as paths: "encoders[1].slope_scale"."""
    return frozenset(f"encoders[{i}].{name}" for i, encoder in enumerate(encoders) for name in encoder.retunable)


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return leading(a, rank) + leading(b, rank)
