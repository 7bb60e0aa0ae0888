"""A perceptron with dropout under SGD with momentum: linear in the gradients, so that means of steps are steps of means."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 16


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, 4))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randint(4, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.1, momentum=0.9)
