"""A 3-D U-Net of MONAI, whose skips reach from the first to the last layers."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build() -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(
        spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1
    )


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 8, 8, 8), torch.randint(2, (n, 8, 8, 8))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.01, momentum=0.9)
