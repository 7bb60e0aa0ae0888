"""Random numbers from all sides: drawn inside of a module that is taken as it is, noise that evaluation has too, and
positions of which nothing is dropped out."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8
opaque = ["first", "second"]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > 1e9:
            x = -x
        result: Tensor = x + self.drop(self.inner(x))
        return result


class Drawing(nn.Module):
    def __init__(self, noise: bool) -> None:
        super().__init__()
        self.before, self.first = nn.Linear(WIDTH, WIDTH), Branching()
        self.between, self.second = nn.Linear(WIDTH, WIDTH), Branching()
        self.after, self.noise = nn.Linear(WIDTH, 3), noise
        self.register_buffer("positions", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        positions = F.dropout(self.positions, 0.0)
        x = self.between(self.first(self.before(x) + positions)) + positions
        if self.noise:
            x = x + 0.1 * torch.randn_like(x)
        result: Tensor = self.after(self.second(x) + positions)
        return result


def build(noise: bool = True) -> nn.Module:
    return Drawing(noise)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randn(n, 3)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


class Jittered(torch.optim.SGD):
    """Moves every parameter by random numbers, too, as samplers of posteriors do."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for x in group["params"]:
                x.add_(0.01 * torch.randn_like(x))
        super().step()


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], jitter: bool = False
) -> torch.optim.Optimizer:
    return (Jittered if jitter else torch.optim.SGD)([p for _, p in named_parameters], lr=0.1)
