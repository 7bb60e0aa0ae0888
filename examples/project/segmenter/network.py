"""A small U-Net for two-dimensional images."""

import torch
from torch import Tensor, nn


def twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(2, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(2, outputs),
        nn.SiLU(),
    )


class Segmenter(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = twice(1, width)
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.middle = twice(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = twice(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.first(image)
        coarse = self.middle(self.down(fine))
        return self.head(self.last(torch.cat([fine, self.up(coarse)], dim=1)))
