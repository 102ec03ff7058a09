"""Several encodings as one: parameters, checks and variants, part by part."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from ._internal.arrays import leading
from .base import Dims, Encoder, Params
from .positions import Positions
from .rotary.scaling.base import FrequencyMap

__all__ = ["Compose", "Parts"]


@dataclass(frozen=True, init=False)
class Parts(Encoder):
    """Base of encodings made of several others; what it prepares and its tables are tuples, an entry a part.

    Attributes:
      parts: the encoders, given one after the other: `Compose(RoPE(), ALiBi())`.
    """

    parts: tuple[Encoder, ...] = dataclasses.field(metadata={"positional": True})

    def __init__(self, *encoders: Encoder, parts: tuple[Encoder, ...] = ()) -> None:
        object.__setattr__(self, "parts", (*encoders, *parts))
        self.__post_init__()

    def __post_init__(self) -> None:
        own = type(self).__name__
        for part in self.parts:
            if not isinstance(part, Encoder):
                called = f"; call it: {part.__name__}(...)" if isinstance(part, type) else ""
                mapped = "; a frequency map goes into RoPE(scaling=...)" if isinstance(part, FrequencyMap) else ""
                raise ValueError(f"{own} takes encoders, such as {own}(RoPE(), ALiBi()), got {part!r}{called}{mapped}")
        super().__post_init__()
        if not self.parts:
            raise ValueError(
                f"{own} needs at least one encoder, such as {own}(RoPE(), ALiBi()); NoPE() is the one that does nothing"
            )
        for part in self.parts:
            if type(part).at_layer is not Encoder.at_layer:
                raise ValueError(
                    f"{own} cannot hold {type(part).__name__}, whose layers differ; put it outside: "
                    "Layers(Compose(RoPE(), ALiBi()), NoPE())"
                )

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """The parameters of part i under "part<i>"; a part that learns nothing has no entry."""
        keys = jax.random.split(key, len(self.parts))
        drawn = {f"part{i}": part.init(keys[i], dims) for i, part in enumerate(self.parts)}
        return {name: params for name, params in drawn.items() if jax.tree.leaves(params)}

    def check(self, dims: Dims, length: int) -> None:
        for part in self.parts:
            part.check(dims, length)

    def check_positions(self, axes: int | None, real: bool) -> None:
        for part in self.parts:
            part.check_positions(axes, real)

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> tuple[Any, ...]:
        return tuple(part.prepare(params.get(f"part{i}", {}), length, dims) for i, part in enumerate(self.parts))

    def tables(self, prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
        return tuple(part.tables(own, positions) for part, own in zip(self.parts, prepared, strict=True))

    def embed(self, tables: tuple[Any, ...], x: jax.Array, positions: Positions) -> jax.Array:
        raise self._no_doors()

    def rotate(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise self._no_doors()

    def bias(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        raise self._no_doors()

    def _no_doors(self) -> TypeError:
        return TypeError(f"{type(self).__name__} has no doors of its own; open those of .at_layer(layer, tables), or use Compose")

    def changed_by(self, variant: Encoder) -> set[str]:
        """Part by part; variants have the same number of parts."""
        if not isinstance(variant, Parts) or type(variant) is not type(self) or len(variant.parts) != len(self.parts):
            return {"the parts"}
        pairs = zip(self.parts, variant.parts, strict=True)
        return {f"{name} of part {i}" for i, (mine, other) in enumerate(pairs) for name in mine.changed_by(other)}

    @property
    def variant_fields(self) -> frozenset[str]:
        return frozenset(f"{name} of part {i}" for i, part in enumerate(self.parts) for name in part.variant_fields)

    @property
    def needs_length(self) -> bool:
        return any(part.needs_length for part in self.parts)

    @property
    def presumed_lengths(self) -> frozenset[int]:
        return frozenset().union(*(part.presumed_lengths for part in self.parts))


@dataclass(frozen=True, init=False)
class Compose(Parts):
    """Opens every part's doors: what is added adds up, rotations follow one another in the order of the parts.

    A bias that reads q and k (TransformerXL, CoPE) reads them as attention does, already turned.

    Formula: the parts'
    Extrapolates: as its parts do
    Knows: what its parts know

    Example:
      >>> encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
      >>> encoder.bias(encoder.prepare({}, None, dims), q, k, positions).shape  # ALiBi's
      (2, 3, 3)
    """

    def embed(self, tables: tuple[Any, ...], x: jax.Array, positions: Positions) -> jax.Array:
        for part, own in zip(self.parts, tables, strict=True):
            x = part.embed(own, x, positions)
        return x

    def rotate(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        for part, own in zip(self.parts, tables, strict=True):
            q, k = part.rotate(own, q, k)
        return q, k

    def bias(self, tables: tuple[Any, ...], q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        total = None
        for part, own in zip(self.parts, tables, strict=True):
            added = part.bias(own, q, k, positions)
            total = added if total is None else total if added is None else _sum(total, added)
        return total


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return leading(a, rank) + leading(b, rank)
