"""The mini-Transformer: decoder-only, pre-norm, with a position encoding's three doors. The only module that imports flax.

Flax NNX in its functional subset: `functional` splits the module once into (init, apply), plain functions of a params dict.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rope_jax.encoders.base import Encoder, Params, Prepared, Tables
from rope_jax.encoders.positions import Positions
from rope_jax.model.attention import attend, attend_reference
from rope_jax.model.dropout import Dropout
from rope_jax.model.implementation import Implementation
from rope_jax.study.config import ModelConfig

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
            out = attend(q, k, v, positions, bias=bias, fused=self.implementation.fused_attention)
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
      encoder: the position encoding; its parameters live in the model, shared by all layers.
      implementation: how it is computed.
      rngs: the stream `params` draws the weights.
    """

    def __init__(self, config: ModelConfig, vocabulary: int, encoder: Encoder, implementation: Implementation, *, rngs: nnx.Rngs):
        encoder.check_layers(config.num_layers)
        self.config, self.encoder, self.implementation = config, encoder, implementation
        # rows of norm 1, times sqrt(width): features of size 1, so that an added encoding of size 0.7 does not drown the token
        embed = nnx.initializers.normal(config.width**-0.5)
        self.embedding = nnx.Param(embed(rngs.params(), (vocabulary, config.width), jnp.float32))
        self.encoding = nnx.data(jax.tree.map(nnx.Param, encoder.init(rngs.params(), config.dims)))
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
          prepared: from `encoder.prepare`, in place of what the model's own encoder would prepare; a variant's, in evaluation.
          dropout: in training, of the embeddings and of what each sublayer adds; None for none.

        Returns:
          float32 [..., T, vocabulary].
        """
        if prepared is None:
            params = jax.tree.map(lambda p: p[...], self.encoding, is_leaf=lambda p: isinstance(p, nnx.Variable))
            prepared = self.encoder.prepare(params, positions.length, self.config.dims)
        tables = self.encoder.tables(prepared, positions)
        x = jnp.take(self.embedding[...], tokens, axis=0) * math.sqrt(self.config.width)

        def drop(place: int) -> Drop:
            return (lambda x: x) if dropout is None else partial(dropout, place=place, generator=self.implementation.dropout)

        def embed(layer: int, x: jax.Array) -> jax.Array:
            encoder, own = self.encoder.at_layer(layer, tables)
            return encoder.embed(own, x, positions)

        def run(layer: int, block: Block, x: jax.Array) -> jax.Array:
            encoder, own = self.encoder.at_layer(layer, tables)
            return block(x, positions, encoder, own, (drop(2 * layer + 1), drop(2 * layer + 2)))

        period = self.encoder.period
        first = 0 if period == 1 else period  # where layers differ, later ones of the first period add to their input, too
        looped = list(self.blocks[first:]) if self.implementation.scan_layers and dropout is None else []
        x = drop(0)(embed(0, x))
        for layer, block in enumerate(self.blocks[: len(self.blocks) - len(looped)]):
            if 0 < layer < period:
                x = embed(layer, x)
            x = run(layer, block, x)
        if looped:
            x = _scanned(looped, period, run, x)
        return self.head(self.norm(x)).astype(jnp.float32)


def _scanned(blocks: list[Block], period: int, run: Callable[[int, Block, jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """The blocks one after the other as a loop, `period` of them a turn."""
    graph = nnx.graphdef(blocks[0])
    params = [nnx.to_pure_dict(nnx.state(block)) for block in blocks]
    stacked = jax.tree.map(lambda *each: jnp.stack(each).reshape(-1, period, *each[0].shape), *params)

    def turn(x: jax.Array, params: Params) -> tuple[jax.Array, None]:
        for layer in range(period):
            x = run(layer, nnx.merge(graph, jax.tree.map(lambda each, layer=layer: each[layer], params)), x)
        return x, None

    return jax.lax.scan(turn, x, stacked)[0]


@cache
def functional(
    config: ModelConfig, vocabulary: int, encoder: Encoder, *, implementation: Implementation = Implementation()
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
    graph, _ = nnx.split(nnx.eval_shape(build, jax.random.key(0)), nnx.Param)

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.split(build(key), nnx.Param)[1])

    def apply(
        params: Params, tokens: jax.Array, positions: Positions, prepared: Prepared | None = None, **options: Any
    ) -> jax.Array:
        with jax.default_matmul_precision(precision):
            return nnx.merge(graph, params)(tokens, positions, prepared, **options)

    return init, apply


def encoding_params(params: Params) -> Params:
    """The position encoding's own parameters, {} when it learns nothing."""
    return params.get("encoding", {})
