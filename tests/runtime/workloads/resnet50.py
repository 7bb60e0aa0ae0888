"""ResNet-50 whose residual branches begin at zero: as it is usually trained, and not chaotic as from the start of ours.

With other starts and few samples a rounding of the first gradient grows a thousandfold or more a step, in double
precision too; here it stays one.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models import resnet50
from models.resnet50 import loss

__all__ = ["batch", "build", "loss", "optimizer"]


def build(width: int = 64, double: bool = False) -> nn.Module:
    model = resnet50.build(width)
    for module in model.modules():
        if isinstance(module, resnet50.Bottleneck):
            nn.init.zeros_(module.bn3.weight)
    return model.double() if double else model


def batch(n: int, side: int = 224, double: bool = False) -> tuple[Tensor, Tensor]:
    images, targets = resnet50.batch(n, side)
    return images.double() if double else images, targets


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.001
) -> torch.optim.Optimizer:
    return resnet50.optimizer(named_parameters, lr)
