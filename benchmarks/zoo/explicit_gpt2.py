"""GPT-2 in operations that every planner of layouts has rules for: q, k and v apart, attention written out, no biases.

Linear layers with a bias and the fused kernel of attention have no strategies in AutoParallel on a mesh of CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, VOCABULARY = 1024, 16, 512, 8192


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1]) + mask
        x = torch.matmul(torch.softmax(scores, -1), v)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class GPT2(nn.Module):
    def __init__(self, blocks: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build(
    blocks: int = 1,
    width: int = WIDTH,
    heads: int = HEADS,
    length: int = LENGTH,
    vocabulary: int = VOCABULARY,
) -> nn.Module:
    return GPT2(blocks, width, heads, length, vocabulary)


def batch(n: int, length: int = LENGTH, vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(vocabulary, (n, length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in named_parameters], lr=1e-4)
