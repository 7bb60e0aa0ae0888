"""Networks for images and volumes, small and in double precision, without dropout: ours and monai's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import cosmoflow, resnet50, unet3d

CLASSES = 2
SIDE = 16


def build(net: str = "cosmoflow") -> nn.Module:
    if net == "cosmoflow":
        return cosmoflow.build("tiny", 0.0).double()
    if net == "unet3d":
        return unet3d.build("tiny").double()
    if net == "resnet50":
        return resnet50.build(width=8, classes=10).double()
    from monai.networks import nets

    if net == "UNet":
        return nets.UNet(3, 1, CLASSES, (4, 8, 16), (2, 2), num_res_units=1).double()
    if net == "SegResNet":
        return nets.SegResNet(3, 8, 1, CLASSES, blocks_down=(1, 1, 1), blocks_up=(1, 1)).double()
    return nets.VNet(
        2 if net == "VNet of images" else 3, 1, CLASSES, dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0)
    ).double()


def batch(n: int, net: str = "cosmoflow") -> tuple[Tensor, Tensor]:
    if net == "cosmoflow":
        inputs, targets = cosmoflow.batch(n, "tiny")
    elif net == "unet3d":
        inputs, targets = unet3d.batch(n, "tiny")
    elif net == "resnet50":
        inputs, targets = torch.randn(n, 3, 64, 64), torch.randint(0, 10, (n,))
    else:
        shape = (n, 1, 2 * SIDE, 2 * SIDE) if net == "VNet of images" else (n, 1, SIDE, SIDE, SIDE)
        inputs, targets = torch.randn(shape), torch.randint(0, CLASSES, shape)
    return inputs.double(), targets.double() if targets.is_floating_point() else targets


def loss(outputs: Tensor, targets: Tensor, net: str = "cosmoflow") -> Tensor:
    if net == "cosmoflow":
        return cosmoflow.loss(outputs, targets)
    if net == "unet3d":
        return unet3d.loss(outputs, targets)
    if net == "resnet50":
        return F.cross_entropy(outputs, targets)
    return F.cross_entropy(outputs, targets[:, 0])


def optimizer(named_parameters):  # type: ignore[no-untyped-def]
    return torch.optim.SGD(named_parameters, lr=1e-3, momentum=0.9)
