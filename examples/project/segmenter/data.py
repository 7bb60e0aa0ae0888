"""Images of discs on noise, made from their number: the same everywhere, and nothing to download."""

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Discs(Dataset):
    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(index)
        y, x, radius = torch.rand(3, generator=draw) * self.side
        rows = torch.arange(self.side)
        inside = (rows[:, None] - y) ** 2 + (rows - x) ** 2 < (radius / 2) ** 2
        image = inside.float() + 0.3 * torch.randn(self.side, self.side, generator=draw)
        return image[None], inside.long()
