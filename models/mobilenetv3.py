"""MobileNetV3 (Howard et al., 2019), with torchvision's names."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Row(NamedTuple):
    """A line of the paper's tables 1 and 2."""

    kernel: int
    expanded: int
    outputs: int
    squeeze: bool
    activation: type[nn.Module]
    stride: int


class Shape(NamedTuple):
    rows: tuple[Row, ...]
    last: int


STEM = 16
SIZES = {
    "large": Shape(
        rows=(
            Row(3, 16, 16, False, nn.ReLU, 1),
            Row(3, 64, 24, False, nn.ReLU, 2),
            Row(3, 72, 24, False, nn.ReLU, 1),
            Row(5, 72, 40, True, nn.ReLU, 2),
            Row(5, 120, 40, True, nn.ReLU, 1),
            Row(5, 120, 40, True, nn.ReLU, 1),
            Row(3, 240, 80, False, nn.Hardswish, 2),
            Row(3, 200, 80, False, nn.Hardswish, 1),
            Row(3, 184, 80, False, nn.Hardswish, 1),
            Row(3, 184, 80, False, nn.Hardswish, 1),
            Row(3, 480, 112, True, nn.Hardswish, 1),
            Row(3, 672, 112, True, nn.Hardswish, 1),
            Row(5, 672, 160, True, nn.Hardswish, 2),
            Row(5, 960, 160, True, nn.Hardswish, 1),
            Row(5, 960, 160, True, nn.Hardswish, 1),
        ),
        last=1280,
    ),
    "small": Shape(
        rows=(
            Row(3, 16, 16, True, nn.ReLU, 2),
            Row(3, 72, 24, False, nn.ReLU, 2),
            Row(3, 88, 24, False, nn.ReLU, 1),
            Row(5, 96, 40, True, nn.Hardswish, 2),
            Row(5, 240, 40, True, nn.Hardswish, 1),
            Row(5, 240, 40, True, nn.Hardswish, 1),
            Row(5, 120, 48, True, nn.Hardswish, 1),
            Row(5, 144, 48, True, nn.Hardswish, 1),
            Row(5, 288, 96, True, nn.Hardswish, 2),
            Row(5, 576, 96, True, nn.Hardswish, 1),
            Row(5, 576, 96, True, nn.Hardswish, 1),
        ),
        last=1024,
    ),
}

BatchNorm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _divisible_by_8(channels / 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.hardsigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x)))))
        return x * scale


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, row: Row) -> None:
        super().__init__()
        expand = [_convolution(inputs, row.expanded, 1, row.activation)] if row.expanded != inputs else []
        depthwise = _convolution(
            row.expanded, row.expanded, row.kernel, row.activation, row.stride, groups=row.expanded
        )
        squeeze = [SqueezeExcitation(row.expanded)] if row.squeeze else []
        project = _convolution(row.expanded, row.outputs, 1, activation=None)
        self.block = nn.Sequential(*expand, depthwise, *squeeze, project)
        self.residual = row.stride == 1 and inputs == row.outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return x + y if self.residual else y


class MobileNetV3(nn.Module):
    def __init__(self, shape: Shape, classes: int, dropout: float) -> None:
        super().__init__()
        widths = [STEM, *(row.outputs for row in shape.rows)]
        features = 6 * widths[-1]
        self.features = nn.Sequential(
            _convolution(3, STEM, 3, nn.Hardswish, stride=2),
            *(InvertedResidual(inputs, row) for inputs, row in zip(widths, shape.rows, strict=False)),
            _convolution(widths[-1], features, 1, nn.Hardswish),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(features, shape.last),
            nn.Hardswish(),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            nn.Linear(shape.last, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return logits


def build(size: str = "large", classes: int = 1000, dropout: float = 0.2) -> nn.Module:
    """Returns the model with initial weights.

    Args: `size` is "large" or "small"; `dropout` is a probability, 0 for none.
    """
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    model = MobileNetV3(SIZES[size], classes, dropout)
    _initialise(model)
    return model


def batch(n: int, side: int = 224, classes: int = 1000) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, side, side), torch.randint(classes, (n,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.064, weight_decay: float = 1e-5
) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(
        named_parameters, lr=lr, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=weight_decay
    )


def _convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    activation: type[nn.Module] | None,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, BatchNorm(outputs), *([activation()] if activation else []))


def _divisible_by_8(channels: float) -> int:
    """Returns the nearest multiple of 8 that is at least 90 % of a number of channels."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
