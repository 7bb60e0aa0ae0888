"""Most of what is kept lies in a module that no trace can follow."""

import torch
from torch import Tensor, nn

WIDTH = 64

opaque = ["1"]


class Inside(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            x = y.tanh() if y.sum() > 0 else (2 * y).tanh()
        return x


def build(layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Inside(layers), nn.Linear(WIDTH, WIDTH))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randn(n, WIDTH)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()
