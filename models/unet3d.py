"""The 3-D U-Net of MLPerf Training: kidneys and tumours in CT volumes."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


class Shape(NamedTuple):
    filters: tuple[int, ...]
    side: int


SIZES = {
    "tiny": Shape(filters=(4, 8), side=16),
    "small": Shape(filters=(16, 32, 64, 128), side=64),
    # 31,190,243 parameters.
    "mlperf": Shape(filters=(32, 64, 128, 256, 320), side=128),
}


class DoubleConvolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.ReLU(),
            nn.Conv3d(outputs, outputs, 3, padding=1, bias=False),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.ReLU(),
        )


class Up(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose3d(inputs, outputs, 2, stride=2)
        self.convolutions = DoubleConvolution(2 * outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.convolutions(torch.cat((self.upsample(x), skip), dim=1))
        return x


class UNet3d(nn.Module):
    def __init__(self, filters: tuple[int, ...]) -> None:
        super().__init__()
        widths = (*filters, filters[-1])
        self.input = DoubleConvolution(1, filters[0])
        self.down = nn.ModuleList(DoubleConvolution(i, o, stride=2) for i, o in pairwise(widths))
        self.up = nn.ModuleList(Up(i, o) for i, o in pairwise(reversed(widths)))
        self.output = nn.Conv3d(filters[0], CLASSES, 1)

    def forward(self, volume: Tensor) -> Tensor:
        x: Tensor = self.input(volume)
        skips: list[Tensor] = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up in self.up:
            x = up(x, skips.pop())
        x = self.output(x)
        return x


def build(size: str = "small") -> nn.Module:
    return UNet3d(_shape(size).filters)


def batch(n: int, size: str = "small", side: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns random volumes and labels.

    Args: `n` is the number of samples; `side` is voxels an edge, that of the size where it is not given.
    Returns: volumes [sample, 1, x, y, z] and labels [sample, x, y, z].
    Raises: ValueError where `side` does not fit the network's depth.
    """
    shape = _shape(size)
    side = shape.side if side is None else side
    # InstanceNorm needs more than one voxel at the bottleneck.
    step = 2 ** len(shape.filters)
    if side % step or side < 2 * step:
        raise ValueError(f"side={side}: size {size!r} takes {2 * step}, {3 * step}, {4 * step} and so on")
    return torch.randn(n, 1, side, side, side), torch.randint(CLASSES, (n, side, side, side))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns half the cross-entropy plus half the Dice loss of all classes but the background.

    Args: `logits` are [sample, class, x, y, z] and `labels` [sample, x, y, z].
    """
    return (F.cross_entropy(logits, labels) + _dice_loss(logits.softmax(1), labels)) / 2


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9)


def _dice_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    predicted = probabilities[:, 1:].flatten(2)
    true = torch.stack([labels == label for label in range(1, CLASSES)], dim=1).flatten(2)
    overlap = (predicted * true).sum(2)
    dice = (2 * overlap + 1e-6) / (predicted.sum(2) + true.sum(2) + 1e-6)
    return (1 - dice).mean()


def _shape(size: str) -> Shape:
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    return SIZES[size]
