"""Dropout in several layers, one of them inside attention."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.qkv, self.out, self.rate = nn.Linear(width, 3 * width), nn.Linear(width, width), rate
        self.drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        rate = self.rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        result: Tensor = x + self.drop(self.out(attended))
        return result


def build(rate: float = 0.3) -> nn.Module:
    return nn.Sequential(*(Block(8, rate) for _ in range(4)), nn.Linear(8, 3))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, 8), torch.randn(n, 5, 3)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.1)
