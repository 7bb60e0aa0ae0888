"""Convolutions with normalisation over all replicas, and one that is each replica's own."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build(channels: int = 6, momentum: float = 0.1) -> nn.Module:
    def block(into: int) -> list[nn.Module]:
        return [
            nn.Conv2d(into, channels, 3, padding=1, bias=False),
            nn.SyncBatchNorm(channels, momentum=momentum or None),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *block(3), *block(channels), *block(channels), nn.Flatten(), nn.Linear(16 * channels, 5)
    ).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 4, 4, dtype=torch.float64), torch.randint(5, (n,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.01, momentum=0.9)
