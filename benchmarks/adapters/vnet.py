"""A residual V-Net on volumes of 448 cubed: what one sample keeps is more than a device has, whole or in two parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS, CLASSES, SIDE = 2, 3, 448
DEPTH = (1, 2, 2, 3)  # convolutions of each encoder level; decoders have as many, two at most


def _convolved(before: int, after: int, kernel: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(before, after, kernel, padding=kernel // 2), nn.GroupNorm(4, after), nn.PReLU()
    )


class Residual(nn.Module):
    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        kernel = 5 if channels < 64 else 3
        self.body = nn.Sequential(*[_convolved(channels, channels, kernel) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.body(x)
        return x + changed


class Down(nn.Module):
    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.halve = nn.Conv3d(channels, 2 * channels, 2, 2)
        self.norm = nn.InstanceNorm3d(2 * channels, affine=True)
        self.blocks = Residual(2 * channels, count)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.blocks(F.relu(self.norm(self.halve(x))))
        return found


class Up(nn.Module):
    def __init__(self, before: int, after: int, count: int) -> None:
        super().__init__()
        self.narrow = _convolved(before, after, 1)
        self.merge = _convolved(2 * after, after)
        self.blocks = Residual(after, count)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        x = F.interpolate(self.narrow(x), scale_factor=2, mode="trilinear", align_corners=False)
        found: Tensor = self.blocks(self.merge(torch.cat([x, skipped], 1)))
        return found


class VNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = [width << level for level in range(len(DEPTH) + 1)]
        self.stem = _convolved(CHANNELS, width)
        self.down = nn.ModuleList(map(Down, wide, DEPTH))
        self.up = nn.ModuleList(
            Up(wide[level + 1], wide[level], min(2, DEPTH[level])) for level in reversed(range(len(DEPTH)))
        )
        self.head, self.deep = nn.Conv3d(width, CLASSES, 1), nn.Conv3d(2 * width, CLASSES, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skipped = [self.stem(x)]
        for down in self.down:
            skipped.append(down(skipped[-1]))
        x = skipped.pop()
        for up in self.up:
            before, x = x, up(x, skipped.pop())
        return self.head(x), self.deep(before)


def build(width: int = 32) -> nn.Module:
    return VNet(width)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, CHANNELS, SIDE, SIDE, SIDE), torch.randint(CLASSES, (n, SIDE, SIDE, SIDE))


def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    whole, coarse = outputs
    return F.cross_entropy(whole, targets) + 0.4 * F.cross_entropy(coarse, targets[:, ::2, ::2, ::2])
