"""Buffers that a forward pass both writes and reads: averages read as soon as they are moved, codes read before that
and written through a view, and the vectors of a spectral norm."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class Average(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.seen.add_(1)
        return torch.tanh(y * 2 + self.average)


class Codes(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)
        self.register_buffer("codes", torch.randn(2, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        made = y + self.codes[0].clone() * y.mean()
        with torch.no_grad():
            self.codes[0].mul_(0.5).add_(y.mean(0))
        return made


def build(width: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width),
        Average(width),
        Codes(width),
        spectral_norm(nn.Linear(width, width)),
        nn.Tanh(),
        nn.Linear(width, 3),
    ).double()


def batch(n: int, width: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(n, width, dtype=torch.float64), torch.randint(3, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.1)
