"""A pattern of encoders over the layers of a model."""

from dataclasses import dataclass
from typing import Any

import jax

from .base import Encoder
from .combine import EncoderSequence

__all__ = ["Layers"]


@dataclass(frozen=True, init=False)
class Layers(EncoderSequence):
    """A pattern of encoders over layers: layer i uses encoder i modulo their number.

    It is not an encoder and has no hooks. A `Method` takes it in place of an encoder, and the model calls `encoder(layer)` for
    each layer. The number of layers is a multiple of the number of encoders. `Layers(RoPE(), RoPE(), RoPE(), NoPE())` is RoPE in
    three of four layers (arXiv:2501.18795). `Layers(Compose(RoPE(), SlidingWindow(size=8)), RoPE())` is a window in every second
    layer (Gemma 2, arXiv:2408.00118). An encoder that adds to the input does so before its first layer. Each encoder has separate
    parameters, which the layers that use it share.

    Formula: those of its encoders, each in its layers
    Extrapolates: as its encoders do
    Knows: what its encoders know

    Example:
      >>> rj.Layers(rj.RoPE(), rj.NoPE()).encoder(3)
      NoPE()
    """

    def encoder(self, layer: int) -> Encoder:
        """The encoder of a layer, counted from 0."""
        return self.encoders[layer % len(self.encoders)]

    def tables_of_layer(self, tables: tuple[Any, ...], layer: int) -> Any:
        """The tables that the hooks of a layer's encoder take; where layers differ (`Requirements.per_layer`), their entry."""
        each = tables[layer % len(self.encoders)]
        return jax.tree.map(lambda x: x[layer], each) if self.encoder(layer).requirements.per_layer else each

    def check_num_layers(self, num_layers: int) -> None:
        """Raises ValueError unless the number of layers is a multiple of the number of encoders."""
        period = len(self.encoders)
        if num_layers % period:
            fitting = period * max(1, round(num_layers / period))
            raise ValueError(
                f"model.num_layers {num_layers} is not a multiple of the {period} encoders of Layers; use {fitting} layers, or "
                "another pattern"
            )


def as_layers(encoder: Encoder | Layers) -> Layers:
    """The pattern itself, or the pattern of one encoder for all layers."""
    return encoder if isinstance(encoder, Layers) else Layers(encoder)
