"""A small attention with one thing in it that ranks cannot do on parts of tensors, by its name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, LENGTH = 16, 8


class Attention(nn.Module):
    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd, self.heads, self.groups = odd, 4, 2 if odd == "groups" else 4
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * self.groups * WIDTH // self.heads)
        self.mask = nn.Parameter(torch.zeros(LENGTH, LENGTH)) if odd == "mask" else None

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.groups, -1)).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        dropped = 0.1 if self.odd == "dropout" else 0.0
        made = F.scaled_dot_product_attention(
            q, k, v, self.mask, dropped, enable_gqa=self.groups < self.heads
        )
        found: Tensor = self.out(made.transpose(1, 2).flatten(2))
        return found


class Middle(nn.Module):
    def __init__(self, odd: str) -> None:
        super().__init__()
        self.odd = odd
        self.norm = nn.BatchNorm1d(LENGTH) if odd == "norm" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is not None:
            x = self.norm(x)
        if self.odd == "bounded":
            return x.renorm(2, 0, 5.0)
        if self.odd == "write":
            x = x * 2
            x[:, 1:3] = 0
        return x


class Taken(nn.Module):
    """A module that may be taken as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Odd(nn.Module):
    def __init__(self, odd: str) -> None:
        super().__init__()
        self.attention, self.up, self.middle = Attention(odd), nn.Linear(WIDTH, 2 * WIDTH), Middle(odd)
        self.taken, self.down = Taken(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.taken(self.middle(self.up(x + self.attention(x)))))
        return found


def build(odd: str = "") -> nn.Module:
    return Odd(odd).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, LENGTH, WIDTH).double(), torch.randn(n, LENGTH, WIDTH).double()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)
