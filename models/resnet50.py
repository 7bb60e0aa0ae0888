"""ResNet-50 (He et al., 2015), with the stride in the 3 x 3 convolutions and torchvision's names."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXPANSION = 4
BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        x = self.relu(y + self.downsample(x))
        return x


class ResNet(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, BLOCKS[0], stride=1)
        self.layer2 = _stage(4 * width, 2 * width, BLOCKS[1], stride=2)
        self.layer3 = _stage(8 * width, 4 * width, BLOCKS[2], stride=2)
        self.layer4 = _stage(16 * width, 8 * width, BLOCKS[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def build(width: int = 64, classes: int = 1000) -> nn.Module:
    model = ResNet(width, classes)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def batch(n: int, side: int = 224, classes: int = 1000) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, side, side), torch.randint(classes, (n,))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.1, weight_decay: float = 1e-4
) -> torch.optim.Optimizer:
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(first, *(Bottleneck(EXPANSION * width, width, stride=1) for _ in range(blocks - 1)))
