"""The same training step and attention in eager PyTorch: the contender "torch". Needs the extra `benchmark`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import harness
from rope_jax.optimizers import AdamW
from rope_jax.study.config import Cell
from rope_jax.tasks.base import Batch


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
    """Rotates [B, H, T, D] in the layout "half"."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def load(module: Transformer, params: Any) -> None:
    """Copies the parameters of `rope_jax.model.transformer` into the module."""

    def put(parameter: nn.Parameter, value: Any) -> None:
        parameter.data.copy_(torch.from_numpy(np.array(value)))

    put(module.embedding.weight, params["embedding"])
    put(module.norm.weight, params["norm"]["scale"])
    put(module.head.weight, params["head"]["kernel"].T)
    for block, (_, values) in zip(module.blocks, sorted(params["blocks"].items()), strict=True):
        for name in ("attention_norm", "mlp_norm"):
            put(getattr(block, name).weight, values[name]["scale"])
        for layer, names in (("attention", ("project", "out")), ("mlp", ("up", "down"))):
            for name in names:
                put(getattr(block, name).weight, values[layer][name]["kernel"].T)


def trainer(cell: Cell, params: Any, batches: list[Batch], learning_rates: np.ndarray) -> Callable[[], float]:
    """A call that trains on the next of the batches, in turns, and returns the loss before the step.

    Args:
      cell: the model's sizes, the dropout rate and the optimiser, which must be AdamW.
      params: of one seed of `rope_jax.model.transformer`, where training begins.
      batches: taken in turns.
      learning_rates: of each step; later steps have the last one.

    Raises:
      ValueError: the optimiser is another one.
    """
    adamw = cell.train.optimizer
    if not isinstance(adamw, AdamW):
        raise ValueError(f"the PyTorch contender trains with AdamW, got {adamw!r}; choose AdamW in the cell's train settings")
    torch.set_num_threads(harness.cores())
    module = Transformer(cell)
    load(module, jax.device_get(params))
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": adamw.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(adamw.b1, adamw.b2), eps=adamw.eps)
    tensors = [
        tuple(torch.from_numpy(np.array(x)).long() for x in (batch.tokens, batch.targets, batch.loss_mask)) for batch in batches
    ]
    step = 0

    def call() -> float:
        nonlocal step
        tokens, targets, mask = tensors[step % len(tensors)]
        for group in optimizer.param_groups:
            group["lr"] = float(learning_rates[min(step, len(learning_rates) - 1)])
        losses = functional.cross_entropy(module(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        value = (losses * mask.flatten()).sum() / mask.sum()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, cell.train.clip_norm)
        optimizer.step()
        step += 1
        return float(value.detach())

    return call


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, w: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The calls of scaled_dot_product_attention under a causal mask, by direction.

    Args:
      q, k, v: float32 [B, T, H, D]; PyTorch gets them as [B, H, T, D], contiguous.
      w: of the same shape; "backward" is the gradient of sum(w * attention(q, k, v)).
    """
    torch.set_num_threads(harness.cores())
    *inputs, weights = (torch.from_numpy(np.array(x)).transpose(1, 2).contiguous() for x in (q, k, v, w))
    tracked = [x.clone().requires_grad_() for x in inputs]

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return functional.scaled_dot_product_attention(*inputs, is_causal=True)

    def backward() -> tuple[torch.Tensor, ...]:
        total = (weights * functional.scaled_dot_product_attention(*tracked, is_causal=True)).sum()
        return torch.autograd.grad(total, tracked)

    return {"forward": forward, "backward": backward}
