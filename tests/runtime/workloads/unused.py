"""A network most of whose bytes no layer uses: a tower that `forward` leaves out, and a table that nothing reads."""

import torch
from torch import Tensor, nn


class Unused(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.used = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.tower = nn.Linear(8 * width, 8 * width)
        self.register_buffer("table", torch.arange(8.0 * width))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.used(x)
        return made


def build(width: int = 64) -> nn.Module:
    return Unused(width)


def batch(n: int, width: int = 64) -> tuple[Tensor, Tensor]:
    return torch.randn(n, width), torch.randn(n, width)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(outputs, targets)
