"""A wide Value that is read twice: what made it keeps it, or none but its readers do."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDE = 2048


class ReadTwice(nn.Module):
    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, WIDE)
        self.act = nn.ReLU() if kept else nn.Identity()
        self.early, self.between, self.late = nn.Linear(WIDE, 8), nn.Linear(8, 8), nn.Linear(WIDE, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.act(self.first(x))
        narrow = self.between(self.early(wide))
        return self.out(narrow + self.late(wide))


def build(kept: bool = True) -> nn.Module:
    return ReadTwice(kept=kept)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)
