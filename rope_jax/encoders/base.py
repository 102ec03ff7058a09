"""What a position encoder is to a model: parameters, tables and three hooks.

An encoder acts in one of three places: `embed` adds to the input, `rotate` transforms queries and keys, `bias` adds to the
attention logits. A model calls all three hooks. A hook that an encoder does not define is the identity.

What flows, once a forward pass::

    params --prepare(length)--> prepared --tables(positions)--> tables --> embed, rotate, bias (every layer)

`prepare` computes what depends on the parameters and the current length alone (RoPE: its frequencies). Two encoders that differ
in nothing else share one compiled program: one trained model is evaluated under many scaling rules in this way.

Shape legend: B batch, T time, H heads, D head dim, R rotary dim.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from ._internal.typed_dataclass import TypedDataclass
from .positions.base import Positions

__all__ = ["Dims", "Encoder", "NoPE", "Requirements", "check_requirements"]

Params = Any  # a pytree of arrays; {} when nothing is learned
Prepared = Any  # a pytree of arrays
Tables = Any  # a pytree of arrays


@dataclass(frozen=True, kw_only=True)
class Dims:
    """The sizes of the model that an encoder is part of.

    Attributes:
      width: features of the residual stream.
      num_heads: attention heads.
      head_dim: features of one head.
      num_layers: layers; read by encoders that differ from layer to layer.
    """

    width: int
    num_heads: int
    head_dim: int
    num_layers: int = 1


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What an encoder requires of positions, sizes and layers. The default requires nothing.

    Attributes:
      position_axes: the fewest and the most axes of positions that it reads; a most of None is no limit. None: it reads positions
        without an axis of axes only. Such positions are readable for every encoder.
      whole_positions: positions must be integers.
      max_position: the largest position that it can encode; None is no limit.
      beyond: the error for a larger position, a format string with {position} and {length}, which is position + 1.
      causal: attention must be causal.
      length: it reads the current length, so the length of the answer is privileged information.
      original_lengths: the trained lengths, in input positions, that its options state.
      per_layer: layers differ. Every leaf of `tables` has a leading axis of `dims.num_layers`, and layer i gets entry i.
      sizes: functions of the Dims of a model; each raises ValueError if the encoder does not fit them.
    """

    position_axes: tuple[int, int | None] | None = (1, None)
    whole_positions: bool = False
    max_position: int | None = None
    beyond: str = "position {position} is too large for this encoder; keep to smaller positions"
    causal: bool = False
    length: bool = False
    original_lengths: frozenset[int] = frozenset()
    per_layer: bool = False
    sizes: tuple[Callable[[Dims], None], ...] = ()

    @staticmethod
    def together(each: Iterable["Requirements"]) -> "Requirements":
        """The requirements of several encoders that are used together."""
        every = tuple(each)
        axes = [one.position_axes for one in every]
        readable = [limits for limits in axes if limits is not None]
        most = [limits[1] for limits in readable if limits[1] is not None]
        limited = [one for one in every if one.max_position is not None]
        tightest = min(limited, key=lambda one: one.max_position or 0, default=Requirements())
        return Requirements(
            position_axes=(
                (max((limits[0] for limits in readable), default=1), min(most, default=None)) if None not in axes else None
            ),
            whole_positions=any(one.whole_positions for one in every),
            max_position=tightest.max_position,
            beyond=tightest.beyond,
            causal=any(one.causal for one in every),
            length=any(one.length for one in every),
            original_lengths=frozenset().union(*(one.original_lengths for one in every)),
            per_layer=any(one.per_layer for one in every),
            sizes=tuple(check for one in every for check in one.sizes),
        )


@dataclass(frozen=True, kw_only=True)
class Encoder(TypedDataclass):
    """Base of all position encoders; by itself the identity.

    Encoders are frozen and hashable, and hold Python numbers, strings and tuples only. They do not store the sizes of the model:
    sizes come with `dims` and with the arrays. An encoder overrides those of these eight members that it needs.
    """

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Draws the learned parameters: a pytree of float32 arrays, {} when nothing is learned."""
        return {}

    def prepare(self, params: Params, length: jax.Array | int | None, dims: Dims) -> Prepared:
        """Computes what depends on parameters and current length alone; by default the parameters."""
        return params

    def tables(self, prepared: Prepared, positions: Positions) -> Tables:
        """Computes what all layers share (cos and sin, say), once a forward pass; by default `prepared` itself."""
        return prepared

    def embed(self, tables: Tables, x: jax.Array, positions: Positions) -> jax.Array:
        """Adds to the token embeddings x, [..., T, width]."""
        return x

    def rotate(self, tables: Tables, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Transforms q, [..., Tq, H, D], and k, [..., Tk, H, D]."""
        return q, k

    def bias(self, tables: Tables, q: jax.Array, k: jax.Array, positions: Positions) -> jax.Array | None:
        """Returns what is added to the logits, float32 [..., H, Tq, Tk]; None adds nothing.

        Attention calls this for one block of queries at a time. Then q and the positions of queries are cut to the block, and k
        and the positions of keys are cut to the keys that the block may see: a value must not depend on the number of keys.
        """
        return None

    @property
    def requirements(self) -> Requirements:
        """What the encoder requires of positions, sizes and layers."""
        return Requirements()

    @property
    def retunable(self) -> frozenset[str]:
        """The options that act through `prepare` alone, so that they may change on a trained model."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class NoPE(Encoder):
    """No position encoding: the model knows the order only from the causal mask (Kazemnejad et al. 2023, arXiv:2305.19466).

    Formula: none
    Extrapolates: yes in form, no position is encoded
    Knows: nothing

    Example:
      >>> rj.NoPE().bias({}, q, k, positions) is None
      True
    """


def changed_options(trained: Any, variant: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of the options in which two encoders differ, such as "scaling" or "encoders[1].slope_scale".

    A path ends at the first option that is not an encoder, a tuple of encoders or a pattern of them. Where the classes or the
    numbers of encoders differ, the path is that of the whole; for the encoders themselves it is "the class".
    """
    if trained == variant:
        return
    if type(trained) is not type(variant):
        yield path or "the class"
        return
    if isinstance(trained, tuple) and len(trained) == len(variant) and any(isinstance(value, Encoder) for value in trained):
        for i, pair in enumerate(zip(trained, variant, strict=True)):
            yield from changed_options(*pair, f"{path}[{i}]")
    elif isinstance(trained, Encoder) or (not path and dataclasses.is_dataclass(trained)):
        for field in dataclasses.fields(trained):
            value, other = getattr(trained, field.name), getattr(variant, field.name)
            yield from changed_options(value, other, f"{path}.{field.name}" if path else field.name)
    else:
        yield path


def check_requirements(
    encoder: Encoder,
    dims: Dims,
    *,
    position_axes: int | None = None,
    real_positions: bool = False,
    max_position: int = 0,
    causal: bool = True,
) -> None:
    """Raises ValueError unless a model of these sizes can use the encoder with such positions. It traces nothing.

    Args:
      encoder: the encoder; if it combines several, each of them is checked, so that the message names it.
      dims: the sizes of the model.
      position_axes: how many axes the positions have; None for positions without an axis of axes.
      real_positions: whether positions are real numbers.
      max_position: the largest position.
      causal: whether attention is causal.
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"check_requirements takes an encoder, such as RoPE(), got {encoder!r}; call the class")
    if several := getattr(encoder, "encoders", ()):
        for one in several:
            check_requirements(
                one,
                dims,
                position_axes=position_axes,
                real_positions=real_positions,
                max_position=max_position,
                causal=causal,
            )
        return
    needs, name = encoder.requirements, type(encoder).__name__
    for check in needs.sizes:
        check(dims)
    if position_axes is not None:
        fewest, most = needs.position_axes or (0, 0)
        if position_axes < fewest or (most is not None and position_axes > most):
            limits = f"at least {fewest}" if most is None else f"{fewest} to {most}" if fewest < most else f"{most}"
            limits = "one axis" if needs.position_axes in (None, (1, 1)) else f"{limits} axes"
            raise ValueError(
                f"{name} reads positions of {limits}, but these have {position_axes}; use RoPE with sections=, which reads "
                "several axes, or a bias with axis=, which reads one of them"
            )
    if real_positions and needs.whole_positions:
        raise ValueError(
            f"{name} needs integer positions, but these are real numbers; use an encoder that is a function of real positions, "
            "such as Sinusoidal, RoPE, ALiBi or Kerple"
        )
    if needs.causal and not causal:
        raise ValueError(f"{name} is defined for causal attention, but this attention is two-sided; use another encoder")
    if needs.max_position is not None and max_position > needs.max_position:
        raise ValueError(needs.beyond.format(position=max_position, length=max_position + 1))
