"""Several encodings as one, each through its own doors."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax

from rope_jax.encoders.base import Dims, Encoder, Params, Positions, leading
from rope_jax.encoders.scaling import FrequencyMap

__all__ = ["Compose"]


@dataclass(frozen=True, init=False)
class Compose(Encoder):
    """Opens every part's doors: what is added adds up, rotations follow one another in the order of the parts.

    A bias that reads q and k (TransformerXL, CoPE) reads them as attention does, already turned.

    Formula: the parts'
    Extrapolates: as its parts do
    Knows: what its parts know

    Example:
      >>> encoder = rj.Compose(rj.RoPE(), rj.ALiBi())
      >>> encoder.bias(encoder.prepare({}, None, dims), q, k, positions).shape  # ALiBi's
      (2, 3, 3)

    Attributes:
      parts: the encoders, given as `Compose(RoPE(), ALiBi())`.
    """

    parts: tuple[Encoder, ...] = dataclasses.field(metadata={"positional": True})

    def __init__(self, *encoders: Encoder, parts: tuple[Encoder, ...] = ()) -> None:
        object.__setattr__(self, "parts", (*encoders, *parts))
        self.__post_init__()

    def __post_init__(self) -> None:
        for part in self.parts:
            if not isinstance(part, Encoder):
                called = f"; call it: {part.__name__}(...)" if isinstance(part, type) else ""
                mapped = "; a frequency map goes into RoPE(scaling=...)" if isinstance(part, FrequencyMap) else ""
                raise ValueError(f"Compose takes encoders, such as Compose(RoPE(), ALiBi()), got {part!r}{called}{mapped}")
        super().__post_init__()
        if not self.parts:
            raise ValueError(
                "Compose needs at least one encoder, such as Compose(RoPE(), ALiBi()); NoPE() is the one that does nothing"
            )

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """The parameters of part i under "part<i>"; a part that learns nothing has no entry."""
        keys = jax.random.split(key, len(self.parts))
        drawn = {f"part{i}": part.init(keys[i], dims) for i, part in enumerate(self.parts)}
        return {name: params for name, params in drawn.items() if jax.tree.leaves(params)}

    def check(self, dims: Dims, length: int) -> None:
        for part in self.parts:
            part.check(dims, length)

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> tuple[Any, ...]:
        return tuple(part.prepare(params.get(f"part{i}", {}), length, dims) for i, part in enumerate(self.parts))

    def tables(self, prepared: tuple[Any, ...], positions: Positions) -> tuple[Any, ...]:
        return tuple(part.tables(own, positions) for part, own in zip(self.parts, prepared, strict=True))

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

    def changed_by(self, variant: Encoder) -> set[str]:
        """Part by part; variants have the same number of parts."""
        if not isinstance(variant, Compose) or len(variant.parts) != len(self.parts):
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


def _sum(a: jax.Array, b: jax.Array) -> jax.Array:
    rank = max(a.ndim, b.ndim)
    return leading(a, rank) + leading(b, rank)
