"""How the model is computed: switches between implementations of the same function.

The default is what experiments use. The other choices are simpler forms: tests compare with them, and benchmarks time what each
mechanism gains.
"""

from dataclasses import dataclass
from typing import Literal

from rope_jax.encoders._internal.typed_dataclass import TypedDataclass


@dataclass(frozen=True, kw_only=True)
class Implementation(TypedDataclass):
    """How the model is computed, and nothing of what is computed.

    Any two implementations give the same logits from the same parameters, up to rounding. The one exception is `dropout`, which
    draws other values with the same probability. An implementation is therefore no part of an experiment or of its hash.

    Attributes:
      attention: "blocks" computes attention in blocks of queries (`attention.attend`); "reference" computes all scores at once
        (`attention.attend_reference`).
      fused_attention: with "blocks", use cuDNN's fused kernel where it computes the same function (`attention.attend`).
      tokens_as_rows: linear maps get all tokens as the rows of one matrix, [B * T, width], instead of [B, T, width]. With more
        axes, XLA on a CPU transposes the input in memory to compute the kernel's gradient.
      dropout: the random numbers of dropout: "counter" is a hash of example, place, token and feature; "threefry" is `jax.random`
        (`dropout.Dropout`).
      activation_bytes: the memory budget of attention's blocks on an accelerator (`block_sizes.activation_bytes`); None is that
        of a model that has the device alone.
      scan_layers: compute equal layers as one loop, except with dropout. On a CPU this is faster where no gradient is taken and
        slower with a gradient; from about a dozen layers on it also compiles faster.
    """

    attention: Literal["blocks", "reference"] = "blocks"
    fused_attention: bool = True
    tokens_as_rows: bool = True
    dropout: Literal["counter", "threefry"] = "counter"
    activation_bytes: int | None = None
    scan_layers: bool = False
