"""CosmoFlow: cosmological parameters from the 3-D distribution of matter.

Two networks go by this name. MLPerf HPC's (sizes tiny, small, mlperf) pools to a map of 4 x 4 x 4; that
of "The Case for Strong Scaling in Deep Learning" (Oyama et al., 2020; sizes paper128, paper256, paper512)
pools to 2 x 2 x 2 and so has 9,437,636 parameters for each edge of the volume.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REDSHIFTS = 4
PARAMETERS = 4
PAPER_CHANNELS = (16, 32, 64, 128, 256, 256, 256)


class Mlperf(NamedTuple):
    side: int
    channels: tuple[int, ...]


class Paper(NamedTuple):
    side: int
    pooled: int  # convolutions, from the first on, that a pooling follows


SIZES: dict[str, Mlperf | Paper] = {
    "tiny": Mlperf(side=16, channels=(4, 8)),
    "small": Mlperf(side=64, channels=(32, 64, 128, 256)),
    "mlperf": Mlperf(side=128, channels=(32, 64, 128, 256, 512)),
    "paper128": Paper(side=128, pooled=5),
    "paper256": Paper(side=256, pooled=6),
    "paper512": Paper(side=512, pooled=7),
}


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class CosmoFlow(nn.Module):
    def __init__(self, trunk: nn.Sequential, head: nn.Sequential) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, universe: Tensor) -> Tensor:
        x: Tensor = self.head(self.trunk(universe).flatten(1))
        return x


def build(size: str = "small", dropout: float | None = None) -> nn.Module:
    """Returns the model with initial weights.

    Args: `size` is a name in SIZES; `dropout` is 0.5 for MLPerf's network and 0.2 for the paper's where it is
      not given.
    """
    shape = _shape(size)
    if isinstance(shape, Mlperf):
        model = _mlperf(shape, 0.5 if dropout is None else dropout)
    else:
        model = _paper(shape, 0.2 if dropout is None else dropout)
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return model


def batch(n: int, size: str = "small") -> tuple[Tensor, Tensor]:
    """Returns random volumes and parameters.

    Args: `n` is the number of samples.
    Returns: volumes [sample, redshift, x, y, z] and targets [sample, parameter] between -1 and 1.
    """
    side = _shape(size).side
    return torch.randn(n, REDSHIFTS, side, side, side), 2 * torch.rand(n, PARAMETERS) - 1


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-3
) -> torch.optim.Optimizer:
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9)


def _mlperf(shape: Mlperf, dropout: float) -> CosmoFlow:
    trunk: list[nn.Module] = []
    for inputs, outputs in pairwise((REDSHIFTS, *shape.channels)):
        trunk += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
    last_side = shape.side // 2 ** len(shape.channels)
    head: list[nn.Module] = []
    for inputs, outputs in pairwise((shape.channels[-1] * last_side**3, 128, 64)):
        head += [nn.Linear(inputs, outputs), nn.LeakyReLU(0.3), *_dropout(dropout)]
    return CosmoFlow(
        nn.Sequential(*trunk), nn.Sequential(*head, nn.Linear(64, PARAMETERS), nn.Tanh(), Scale(1.2))
    )


def _paper(shape: Paper, dropout: float) -> CosmoFlow:
    trunk: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise((REDSHIFTS, *PAPER_CHANNELS))):
        stride = 2 if outputs == 128 else 1
        trunk += [nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.LeakyReLU()]
        if index < shape.pooled:
            trunk.append(nn.AvgPool3d(3, stride=2, padding=1))
    head: list[nn.Module] = []
    for inputs, outputs in pairwise((8 * PAPER_CHANNELS[-1], 2048, 256)):
        head += [*_dropout(dropout), nn.Linear(inputs, outputs), nn.LeakyReLU()]
    return CosmoFlow(
        nn.Sequential(*trunk), nn.Sequential(*head, *_dropout(dropout), nn.Linear(256, PARAMETERS))
    )


def _dropout(probability: float) -> list[nn.Module]:
    return [nn.Dropout(probability)] if probability else []


def _shape(size: str) -> Mlperf | Paper:
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    return SIZES[size]
