"""Several encoders as one."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ._internal import random
from ._internal.arrays import leading
from ._internal.typed_dataclass import TypedDataclass
from .base import Dims, Encoder, Params, Requirements
from .positions.base import Positions
from .rotary.scaling.base import FrequencyMap

__all__ = ["Compose"]


@dataclass(frozen=True, init=False)
class EncoderSequence(TypedDataclass):
    """Several encoders, given as arguments. What they prepare and their tables are tuples with one entry per encoder.

    Attributes:
      encoders: the encoders, one argument each: `Compose(RoPE(), ALiBi())`.
    """

    encoders: tuple[Encoder, ...] = dataclasses.field(metadata={"positional": True})

    def __init__(self, *positional: Encoder, encoders: tuple[Encoder, ...] = ()) -> None:
        object.__setattr__(self, "encoders", (*positional, *encoders))
        self._require_encoders()
        self.__post_init__()

    def _require_encoders(self) -> None:
        """Raises ValueError if there is no encoder, or if one of them is something else. It names the likely mistake."""
        name = type(self).__name__
        for encoder in self.encoders:
            if isinstance(encoder, Encoder):
                continue
            hint = ""
            if isinstance(encoder, type):
                hint = f"; call it: {encoder.__name__}(...)"
            elif isinstance(encoder, FrequencyMap):
                hint = "; a frequency map goes into RoPE(scaling=...)"
            elif isinstance(encoder, EncoderSequence):
                hint = "; put Layers outside: Layers(Compose(RoPE(), ALiBi()), NoPE())"
            raise ValueError(f"{name} takes encoders, such as {name}(RoPE(), ALiBi()), got {encoder!r}{hint}")
        if not self.encoders:
            raise ValueError(
                f"{name} needs at least one encoder, such as {name}(RoPE(), ALiBi()); NoPE() is the encoder that does nothing"
            )

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """The parameters of encoder i under "encoder<i>"; an encoder that learns nothing has no entry."""
        keys = random.split(key, len(self.encoders)) if len(self.encoders) > 1 else (key,)
        drawn = {f"encoder{i}": encoder.init(keys[i], dims) for i, encoder in enumerate(self.encoders)}
        return {name: params for name, params in drawn.items() if jax.tree.leaves(params)}

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> tuple[Any, ...]:
        """What each encoder prepares from its entry of the parameters."""
        return tuple(encoder.prepare(params.get(f"encoder{i}", {}), length, dims) for i, encoder in enumerate(self.encoders))

    def tables(self, prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
        """The tables of each encoder."""
        return tuple(encoder.tables(one, positions) for encoder, one in zip(self.encoders, prepared, strict=True))

    @property
    def requirements(self) -> Requirements:
        """The requirements of all encoders together."""
        return Requirements.together(encoder.requirements for encoder in self.encoders)

    @property
    def retunable(self) -> frozenset[str]:
        """The options that may change on a trained model, as paths: "encoders[1].slope_scale"."""
        return frozenset(f"encoders[{i}].{name}" for i, encoder in enumerate(self.encoders) for name in encoder.retunable)


@dataclass(frozen=True, init=False)
class Compose(EncoderSequence, Encoder):
    """Applies several encoders to all heads. What they add is summed; rotations follow one another in the order of the encoders.

    A bias that reads q and k (TransformerXL, CoPE) reads them rotated, as attention does.

    Formula: those of its encoders
    Extrapolates: as its encoders do
    Knows: what its encoders know

    Example:
      >>> encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
      >>> encoder.bias(encoder.prepare({}, None, dims), q, k, positions).shape  # ALiBi's
      (2, 3, 3)
    """

    def tables(self, prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
        """The tables of each encoder; where layers differ for one of them, all have a leading axis of the layers."""
        each = super().tables(prepared, positions)
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


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return leading(a, rank) + leading(b, rank)
