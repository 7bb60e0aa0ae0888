"""Large buffers that a forward pass both writes and reads: codes that decay, and those of a layer that is taken as it
is."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16

opaque = ["5"]


class Codebook(nn.Module):
    def __init__(self, codes: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.codes.mul_(0.9)
        return x + self.codes[0]


def build(codes: int = 4096, taken: int = 4096) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        Codebook(codes),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        Codebook(taken),
        nn.Linear(WIDTH, 3),
    )


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randint(3, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)
