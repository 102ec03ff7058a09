"""The mini-Transformer: pre-norm, with the three hooks of position encoders. The only module that imports flax.

Flax NNX in its functional subset: `functional` splits the module once into (init, apply), plain functions of a params dict.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rope_jax.encoders._internal import random
from rope_jax.encoders.base import Encoder, Params, Prepared, Tables
from rope_jax.encoders.layers import Layers, as_layers
from rope_jax.encoders.positions import Positions
from rope_jax.model.attention import attend, attend_reference
from rope_jax.model.dropout import Dropout
from rope_jax.model.implementation import Implementation
from rope_jax.study.settings import ModelConfig

Init = Callable[[jax.Array], Params]
Apply = Callable[..., jax.Array]
Drop = Callable[[jax.Array], jax.Array]


class Linear(nnx.Linear):
    """A linear map without a bias, in the compute dtype."""

    def __init__(
        self, inputs: int, outputs: int, config: ModelConfig, implementation: Implementation, *, rngs: nnx.Rngs, **options: Any
    ):
        super().__init__(inputs, outputs, use_bias=False, dtype=jnp.dtype(config.compute_dtype), rngs=rngs, **options)
        self.tokens_as_rows = implementation.tokens_as_rows

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        if not self.tokens_as_rows:
            return super().__call__(x)
        return super().__call__(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


class Attention(nnx.Module):
    """Multi-head causal self-attention without biases in its projections."""

    def __init__(self, config: ModelConfig, implementation: Implementation, *, rngs: nnx.Rngs):
        self.num_heads, self.implementation = config.num_heads, implementation
        self.project = Linear(config.width, 3 * config.width, config, implementation, rngs=rngs)
        self.out = Linear(config.width, config.width, config, implementation, rngs=rngs)

    def __call__(self, x: jax.Array, positions: Positions, encoder: Encoder, tables: Tables) -> jax.Array:
        heads = self.project(x).reshape(*x.shape[:-1], 3, self.num_heads, -1)
        q, k, v = (heads[..., i, :, :] for i in range(3))
        q, k = encoder.rotate(tables, q, k)
        bias = partial(encoder.bias, tables)
        if self.implementation.attention == "reference":
            out = attend_reference(q, k, v, positions, bias=bias)
        else:
            fused, budget = self.implementation.fused_attention, self.implementation.activation_bytes
            out = attend(q, k, v, positions, bias=bias, fused=fused, budget=budget)
        return self.out(out.reshape(x.shape))


class Mlp(nnx.Module):
    """Two linear maps around a GELU."""

    def __init__(self, config: ModelConfig, implementation: Implementation, *, rngs: nnx.Rngs):
        self.up = Linear(config.width, config.hidden, config, implementation, rngs=rngs)
        self.down = Linear(config.hidden, config.width, config, implementation, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x)))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the residual stream stays float32 (Xiong et al. 2020, arXiv:2002.04745)."""

    def __init__(self, config: ModelConfig, implementation: Implementation, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.attention = Attention(config, implementation, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.mlp = Mlp(config, implementation, rngs=rngs)

    def __call__(
        self, x: jax.Array, positions: Positions, encoder: Encoder, tables: Tables, drop: tuple[Drop, Drop]
    ) -> jax.Array:
        x = x + drop[0](self.attention(self.attention_norm(x), positions, encoder, tables).astype(x.dtype))
        return x + drop[1](self.mlp(self.mlp_norm(x)).astype(x.dtype))


class Transformer(nnx.Module):
    """Tokens in, logits out.

    Args:
      config: sizes and compute dtype.
      vocabulary: how many different tokens there are.
      encoder: the position encoder of all layers, or a pattern of encoders over the layers; its parameters live in the model.
      implementation: how it is computed.
      rngs: the stream `params` draws the weights.
    """

    def __init__(
        self, config: ModelConfig, vocabulary: int, encoder: Encoder | Layers, implementation: Implementation, *, rngs: nnx.Rngs
    ):
        self.config, self.layers, self.implementation = config, as_layers(encoder), implementation
        self.layers.check_num_layers(config.num_layers)
        # rows of norm 1, times sqrt(width): features of size 1, so that an added encoding of size 0.7 does not drown the token
        embed = nnx.initializers.normal(config.width**-0.5)
        self.embedding = nnx.Param(embed(rngs.params(), (vocabulary, config.width), jnp.float32))
        self.encoding = nnx.data(jax.tree.map(nnx.Param, self.layers.init(rngs.params(), config.dims)))
        self.blocks = nnx.List([Block(config, implementation, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = nnx.RMSNorm(config.width, rngs=rngs)
        # small, so that an untrained model gives every token about the same probability
        small = nnx.initializers.normal(0.02)
        self.head = Linear(config.width, vocabulary, config, implementation, kernel_init=small, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        positions: Positions,
        prepared: Prepared | None = None,
        *,
        dropout: Dropout | None = None,
    ) -> jax.Array:
        """Computes the logits.

        Args:
          tokens: int [..., T].
          positions: of those tokens.
          prepared: from `Layers.prepare`; it replaces what the model itself would prepare. In evaluation it is that of a variant.
          dropout: in training, of the embeddings and of what each sublayer adds; None for none.

        Returns:
          float32 [..., T, vocabulary].
        """
        if prepared is None:
            params = jax.tree.map(lambda p: p[...], self.encoding, is_leaf=lambda p: isinstance(p, nnx.Variable))
            prepared = self.layers.prepare(params, positions.length, self.config.dims)
        tables = self.layers.tables(prepared, positions)
        x = jnp.take(self.embedding[...], tokens, axis=0) * math.sqrt(self.config.width)

        def drop(place: int) -> Drop:
            return (lambda x: x) if dropout is None else partial(dropout, place=place, generator=self.implementation.dropout)

        def embed(layer: int, x: jax.Array) -> jax.Array:
            return self.layers.encoder(layer).embed(self.layers.tables_of_layer(tables, layer), x, positions)

        def run(layer: int, block: Block, x: jax.Array, layer_tables: Tables) -> jax.Array:
            return block(x, positions, self.layers.encoder(layer), layer_tables, (drop(2 * layer + 1), drop(2 * layer + 2)))

        period = len(self.layers.encoders)
        unrolled = self.config.num_layers
        if self.implementation.scan_layers and dropout is None:
            unrolled = 0 if period == 1 else period  # in the first period, each encoder adds to the input of its first layer
        x = drop(0)(embed(0, x))
        for layer, block in enumerate(self.blocks[:unrolled]):
            if 0 < layer < period:
                x = embed(layer, x)
            x = run(layer, block, x, self.layers.tables_of_layer(tables, layer))
        if unrolled < self.config.num_layers:
            x = _scan(self.blocks[unrolled:], self.layers, tables, unrolled, run, x)
        return self.head(self.norm(x)).astype(jnp.float32)


def _scan(
    blocks: Sequence[Block],
    layers: Layers,
    tables: tuple[Tables, ...],
    first: int,
    run: Callable[[int, Block, jax.Array, Tables], jax.Array],
    x: jax.Array,
) -> jax.Array:
    """Runs the blocks of the layers from `first` on as a loop over periods of the pattern."""
    period = len(layers.encoders)
    graph = nnx.graphdef(blocks[0])
    params = [nnx.to_pure_dict(nnx.state(block)) for block in blocks]
    stacked = jax.tree.map(lambda *each: jnp.stack(each).reshape(-1, period, *each[0].shape), *params)
    # the tables of encoders whose layers differ, [periods, ...]; those of the others are the same in all layers
    differing = {
        i: jax.tree.map(lambda x, i=i: x[first + i :: period], tables[i])
        for i, encoder in enumerate(layers.encoders)
        if encoder.requirements.per_layer
    }

    def run_period(x: jax.Array, slices: tuple[Params, dict[int, Tables]]) -> tuple[jax.Array, None]:
        params, differing = slices
        for i in range(period):
            block = nnx.merge(graph, jax.tree.map(lambda each, i=i: each[i], params))
            x = run(i, block, x, differing.get(i, tables[i]))
        return x, None

    return jax.lax.scan(run_period, x, (stacked, differing))[0]


@cache
def functional(
    config: ModelConfig, vocabulary: int, encoder: Encoder | Layers, *, implementation: Implementation = Implementation()
) -> tuple[Init, Apply]:
    """The model as two pure functions.

    Args:
      config, vocabulary, encoder: as in `Transformer`.
      implementation: how it is computed; parameters and logits do not depend on it.

    Returns:
      init(key) -> params, a nested dict of arrays (`encoding_params` finds the encoder's in it); and
      apply(params, tokens, positions, prepared=None, *, dropout=None) -> logits, as in `Transformer.__call__`.
    """

    def build(key: Any) -> Transformer:
        return Transformer(config, vocabulary, encoder, implementation, rngs=nnx.Rngs(params=key))

    # float32 means float32: left alone, accelerators multiply it in fewer bits
    precision = "float32" if config.compute_dtype == "float32" else "default"
    graph, _ = nnx.split(nnx.eval_shape(build, random.key(0)), nnx.Param)

    def init(key: jax.Array) -> Params:
        with random.fixed_form():
            return nnx.to_pure_dict(nnx.split(build(random.threefry(key)), nnx.Param)[1])

    def apply(
        params: Params, tokens: jax.Array, positions: Positions, prepared: Prepared | None = None, **options: Any
    ) -> jax.Array:
        with jax.default_matmul_precision(precision):
            return nnx.merge(graph, params)(tokens, positions, prepared, **options)

    return init, apply


def encoding_params(params: Params) -> Params:
    """The parameters of the position encoders, as `Layers.init` names them; {} when they learn nothing."""
    return params.get("encoding", {})
