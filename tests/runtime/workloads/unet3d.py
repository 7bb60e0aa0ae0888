"""The reference model with an optimizer that does not blow rounding up, as Adam does where gradients are tiny."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models import unet3d
from models.unet3d import loss

__all__ = ["batch", "build", "loss", "optimizer"]


def build(size: str = "small", double: bool = False) -> nn.Module:
    model = unet3d.build(size)
    return model.double() if double else model


def batch(
    n: int, size: str = "small", side: int | None = None, double: bool = False
) -> tuple[Tensor, Tensor]:
    volumes, labels = unet3d.batch(n, size, side)
    return volumes.double() if double else volumes, labels


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.05
) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=lr, momentum=0.9)
