"""A perceptron of any depth and width: the smallest workload there is."""

from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build(layers: int = 4, width: int = 64, classes: int = 10) -> nn.Module:
    hidden = chain.from_iterable((nn.Linear(width, width), nn.ReLU()) for _ in range(layers - 1))
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def batch(n: int, width: int = 64, classes: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(n, width), torch.randint(classes, (n,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)
