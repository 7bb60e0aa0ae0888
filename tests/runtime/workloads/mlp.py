"""The reference model with an optimizer that does not blow rounding up, as Adam does where gradients are tiny."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models import mlp
from models.mlp import batch, build

__all__ = ["batch", "build", "loss", "lr_schedule", "optimizer"]


def loss(logits: Tensor, targets: Tensor, factor: float = 1.0) -> Tensor:
    return factor * mlp.loss(logits, targets)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.05, only: str = ""
) -> torch.optim.Optimizer:
    """`only` trains those that have it in their names."""
    return torch.optim.SGD([p for name, p in named_parameters if only in name], lr=lr, momentum=0.9)


def lr_schedule(optimizer: torch.optim.Optimizer, gamma: float = 1.0) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
