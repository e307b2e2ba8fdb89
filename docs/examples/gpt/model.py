"""A small GPT, written once; what multiplies, normalises and attends is given: by torch (`plain`) or us (`ours`)."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tilejit import kernels


@dataclass(frozen=True)
class Size:
    """Of a model and of its batches. Bytes are the tokens."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    hidden: int = 2048
    length: int = 1024
    batch: int = 16
    tokens: int = 256


@dataclass(frozen=True)
class Operators:
    """product(x, w [in, out]), norm(x, w), attention(q, k, v) of [batch, length, heads, d], causal; gate(a, b) =
    silu(a) * b; loss(logits, targets), the mean cross-entropy."""

    product: Callable[..., Any]
    norm: Callable[..., Any]
    attention: Callable[..., Any]
    gate: Callable[..., Any]
    loss: Callable[..., Any]


def _attend(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


plain = Operators(torch.matmul, lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), _attend, lambda a, b: F.silu(a) * b,
                  lambda logits, targets: F.cross_entropy(logits.float(), targets))
ours = Operators(kernels.matmul, lambda x, w: kernels.rmsnorm(x, w, eps=1e-5),
                 lambda q, k, v: kernels.attention(q, k, v, causal=True), kernels.glu, kernels.cross_entropy)


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and with a residual."""

    def __init__(self, size: Size, ops: Operators):
        super().__init__()
        self.size, self.ops, width = size, ops, size.width

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * 0.02)

        self.norm1, self.norm2 = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.qkv, self.out = matrix(width, 3 * width), matrix(width, width)
        self.up, self.down = matrix(width, 2 * size.hidden), matrix(size.hidden, width)

    def forward(self, x: Any) -> Any:
        """x [tokens, width]."""
        ops, s = self.ops, self.size
        norm1, qkv, out, norm2, up, down = (w.to(x.dtype) for w in (self.norm1, self.qkv, self.out, self.norm2, self.up,
                                                                    self.down))
        parts = ops.product(ops.norm(x, norm1), qkv).view(-1, s.length, 3, s.heads, s.width // s.heads)
        x = x + ops.product(ops.attention(*parts.unbind(2)).reshape(x.shape), out)
        a, b = ops.product(ops.norm(x, norm2), up).chunk(2, 1)
        return x + ops.product(ops.gate(a, b), down)


class GPT(nn.Module):
    """The mean loss of the next tokens, in bf16 with fp32 parameters."""

    def __init__(self, size: Size, ops: Operators):
        super().__init__()
        self.size, self.ops = size, ops
        self.tokens = nn.Parameter(torch.randn(size.tokens, size.width) * 0.02)
        self.places = nn.Parameter(torch.randn(size.length, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size, ops) for _ in range(size.layers))
        self.norm = nn.Parameter(torch.ones(size.width))
        self.head = nn.Parameter(torch.randn(size.width, size.tokens) * 0.02)

    def forward(self, inputs: Any, targets: Any) -> Any:
        """inputs, targets [batch, length] of int64."""
        x = (self.tokens[inputs] + self.places).to(torch.bfloat16).view(-1, self.size.width)
        for block in self.blocks:
            x = block(x)
        logits = self.ops.product(self.ops.norm(x, self.norm.to(x.dtype)), self.head.to(x.dtype))
        return self.ops.loss(logits, targets.reshape(-1))
