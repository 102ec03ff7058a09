"""Another encoding in each layer."""

from dataclasses import dataclass
from typing import Any

from .base import Encoder
from .combine import Parts

__all__ = ["Layers"]


@dataclass(frozen=True, init=False)
class Layers(Parts):
    """Gives layer i the doors of part i, and begins anew after the last: the layers are a multiple of the parts.

    RoPE in three layers of four (arXiv:2501.18795) is `Layers(RoPE(), RoPE(), RoPE(), NoPE())`; a window on every second
    layer (Gemma 2, arXiv:2408.00118), `Layers(Compose(RoPE(), SlidingWindow(size=8)), RoPE())`. What a part adds to the input is
    added where its first layer begins. Each part has parameters of its own, shared by the layers that it is given.

    Formula: the parts', each in its layers
    Extrapolates: as its parts do
    Knows: what its parts know

    Example:
      >>> encoder = rj.Layers(rj.RoPE(), rj.NoPE())
      >>> encoder.at_layer(3, encoder.tables(encoder.prepare({}, None, dims), positions))[0]
      NoPE()
    """

    @property
    def period(self) -> int:
        return len(self.parts)

    def at_layer(self, layer: int, tables: tuple[Any, ...]) -> tuple[Encoder, Any]:
        part = layer % len(self.parts)
        return self.parts[part], tables[part]
