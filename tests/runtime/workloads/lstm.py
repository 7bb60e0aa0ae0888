"""The reference model with an optimizer that does not blow rounding up, as Adam does where gradients are tiny."""

from collections.abc import Iterable

import torch
from torch import nn

from models.lstm import batch, build, loss

__all__ = ["batch", "build", "loss", "optimizer"]


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.05
) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=lr, momentum=0.9)
