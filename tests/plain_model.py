"""The model's forward pass written out layer by layer, for tests to compare with."""

import math

import jax
import jax.numpy as jnp


def forward(params, encoders, config, tokens, positions):
    """float32 [T, vocabulary]: the logits of tokens [T], with one encoder for each layer, none of which learns or embeds."""
    length, head_dim = len(tokens), config.width // config.num_heads
    x = params["embedding"][tokens] * math.sqrt(config.width)
    for layer, encoder in enumerate(encoders):
        block = params["blocks"][layer]
        tables = encoder.tables(encoder.prepare({}, positions.length, config.dims), positions)
        projected = _norm(x, block["attention_norm"]) @ block["attention"]["project"]["kernel"]
        heads = projected.reshape(length, 3, config.num_heads, head_dim)
        q, k = encoder.rotate(tables, heads[:, 0], heads[:, 1])
        scores = jnp.einsum("thd,shd->hts", q, k) / math.sqrt(head_dim)
        bias = encoder.bias(tables, q, k, positions)
        scores = scores if bias is None else scores + jnp.broadcast_to(bias, scores.shape)
        scores = jnp.where(jnp.tri(length, dtype=bool)[None], scores, -jnp.inf)
        out = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, -1), heads[:, 2]).reshape(length, config.width)
        x = x + out @ block["attention"]["out"]["kernel"]
        hidden = jax.nn.gelu(_norm(x, block["mlp_norm"]) @ block["mlp"]["up"]["kernel"])
        x = x + hidden @ block["mlp"]["down"]["kernel"]
    return _norm(x, params["norm"]) @ params["head"]["kernel"]


def _norm(x, params):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * params["scale"][None, :]
