"""A recurrent layer among others: a stage with it splits its backward by the graph walk, also of the others."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, STEPS = 24, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(3 * WIDTH, WIDTH),
        )
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        return x


class Mixed(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.before = nn.ModuleList(Block() for _ in range(blocks))
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.after = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.before:
            x = block(x)
        x, _ = self.recurrent(x)
        for block in self.after:
            x = block(x)
        return x


def build(blocks: int = 2) -> nn.Module:
    return Mixed(blocks)


def batch(n: int) -> tuple[Tensor, Tensor]:
    frames = torch.randn(n, STEPS + 1, WIDTH)
    return frames[:, :-1].contiguous(), frames[:, 1:].contiguous()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.05, momentum=0.9)
