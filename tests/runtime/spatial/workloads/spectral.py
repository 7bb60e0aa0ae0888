"""Convolutions in double precision, one of them with a spectral norm, which no shard of a sample changes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils.parametrizations import spectral_norm


def build() -> nn.Module:
    torch.manual_seed(0)
    middle = spectral_norm(nn.Conv2d(4, 4, 3, padding=1))
    first, last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 32, 16, dtype=torch.float64), torch.randn(n, 1, 32, 16, dtype=torch.float64)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(outputs, targets)


def optimizer(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named], lr=0.1)
