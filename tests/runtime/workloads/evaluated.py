"""A network whose code differs outside of training: dropped paths, auxiliary outputs, buffers that training writes."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(0.7).div_(0.7)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.drop, self.path = nn.Dropout(0.2), DropPath()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.path(self.drop(self.norm(self.conv(x)).relu()))
        return result


class Evaluated(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.early, self.aux = Block(channels), nn.Conv2d(channels, 1, 1)
        self.late, self.head = Block(channels), nn.Conv2d(channels, 1, 1)
        self.spare = nn.Conv2d(channels, 1, 1)  # in evaluation alone
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        early = self.early(self.stem(x))
        late = self.late(early)
        if self.training:
            self.seen += 1
            return self.head(late), self.aux(early)
        # weights of the first layer in the last one, and another skip than in training
        scale = self.stem.weight.mean() / (1 + self.seen)
        return (self.head(late + early * scale) + self.spare(late),)


def build(channels: int = 4) -> nn.Module:
    return Evaluated(channels).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 8, 8, dtype=torch.float64), torch.randn(n, 1, 8, 8, dtype=torch.float64)


def loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    found = F.mse_loss(outputs[0], targets)
    for x in outputs[1:]:
        found = found + 0.3 * F.mse_loss(x, targets)
    return found


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.05, momentum=0.9)
