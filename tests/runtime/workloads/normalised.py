"""Convolutions with batch normalisation, whose statistics every micro-batch moves on."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build(channels: int = 6, momentum: float = 0.1, double: bool = False, twice: bool = False) -> nn.Module:
    """Without momentum running statistics are averages. `twice`: a normalisation that two places use."""

    def block(into: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(channels, momentum=momentum or None)
        return [nn.Conv2d(into, channels, 3, padding=1), norm, nn.ReLU(), *([norm] if twice else [])]

    net = nn.Sequential(
        *block(3), *block(channels), *block(channels), nn.Flatten(), nn.Linear(16 * channels, 5)
    )
    return net.double() if double else net


def batch(n: int, double: bool = False) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 4, 4, dtype=torch.float64 if double else None), torch.randint(5, (n,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.01, momentum=0.9)
