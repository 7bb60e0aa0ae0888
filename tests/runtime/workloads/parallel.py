"""Two branches with dropout between a stem and a head: layers that have more than one order."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8


def branch(rate: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(rate), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
    )


class Parallel(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left, self.right = branch(rate), branch(rate)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y: Tensor = self.head(self.left(x) + self.right(x))
        return y


def build(rate: float = 0.3) -> nn.Module:
    return Parallel(rate)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randn(n, 3)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.1)
