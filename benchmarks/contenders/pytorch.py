"""The same training step in eager PyTorch, with its fused attention: the contender "torch". Needs the extra `benchmark`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import harness
from rope_jax.study.config import Cell
from rope_jax.tasks.batch import Batch
from rope_jax.training.train import init_state, learning_rate


class Block(nn.Module):
    """Pre-norm attention and MLP, as `rope_jax.model.transformer.Block`."""

    def __init__(self, width: int, num_heads: int, hidden: int, rate: float):
        super().__init__()
        self.num_heads, self.rate = num_heads, rate
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.rate) if self.rate else x

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        heads = self.project(self.attention_norm(x)).view(*x.shape[:2], 3, self.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh")))


class Transformer(nn.Module):
    """RoPE in the pre-norm Transformer of `rope_jax.model.transformer`."""

    def __init__(self, cell: Cell):
        super().__init__()
        model, rate = cell.model, cell.train.dropout
        self.width, self.head_dim, self.rate = model.width, model.dims.head_dim, rate
        self.embedding = nn.Embedding(cell.task.vocabulary, model.width)
        self.blocks = nn.ModuleList(Block(model.width, model.num_heads, model.hidden, rate) for _ in range(model.num_layers))
        self.norm = nn.RMSNorm(model.width, eps=1e-6)
        self.head = nn.Linear(model.width, cell.task.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * math.sqrt(self.width)
        x = functional.dropout(x, self.rate) if self.rate else x
        inv_freq = 10_000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.arange(tokens.shape[-1])[:, None] * inv_freq
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns [B, H, T, D] by halves."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def load(module: Transformer, params: Any) -> None:
    """Copies the parameters of `rope_jax.model.transformer` into the module."""

    def put(parameter: nn.Parameter, value: Any) -> None:
        parameter.data.copy_(torch.from_numpy(np.array(value)))

    put(module.embedding.weight, params["embedding"])
    put(module.norm.weight, params["norm"]["scale"])
    put(module.head.weight, params["head"]["kernel"].T)
    for block, own in zip(module.blocks, (own for _, own in sorted(params["blocks"].items())), strict=True):
        for name in ("attention_norm", "mlp_norm"):
            put(getattr(block, name).weight, own[name]["scale"])
        for layer, names in (("attention", ("project", "out")), ("mlp", ("up", "down"))):
            for name in names:
                put(getattr(block, name).weight, own[layer][name]["kernel"].T)


def trainer(cell: Cell, batches: list[Batch]) -> Callable[[], float]:
    """A call that trains on the next of the batches and returns the loss before the step."""
    torch.set_num_threads(harness.cores())
    module = Transformer(cell)
    load(module, jax.device_get(jax.jit(lambda seed: init_state(seed, cell).params)(np.uint32(cell.seeds[0]))))
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": cell.train.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0)
    rates = np.asarray(learning_rate(cell.train)(np.arange(cell.train.steps)))
    tensors = [tuple(torch.from_numpy(np.array(x)).long() for x in batch[:3]) for batch in batches]
    step = 0

    def call() -> float:
        nonlocal step
        tokens, targets, mask = tensors[step % len(tensors)]
        for group in optimizer.param_groups:
            group["lr"] = float(rates[min(step, len(rates) - 1)])
        losses = functional.cross_entropy(module(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        value = (losses * mask.flatten()).sum() / mask.sum()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, cell.train.clip_norm)
        optimizer.step()
        step += 1
        return float(value.detach())

    return call
