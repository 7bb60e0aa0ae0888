"""A small U-Net over volumes, in double precision: skips, batch and instance norms, dropout, Dice and cross entropy."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


class Net(nn.Module):
    def __init__(self, dropout: float, momentum: float | None, attending: bool) -> None:
        super().__init__()
        self.attending = attending
        self.first = nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm3d(4, momentum=momentum),
            nn.ReLU(inplace=True),
        )
        self.down = nn.Sequential(
            nn.Conv3d(4, 8, 3, 2, 1, bias=False), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU()
        )
        self.deep = nn.Sequential(
            nn.Conv3d(8, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.GELU(), nn.Dropout(dropout)
        )
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.last = nn.Conv3d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        low = self.down(skip)
        low = low + _attended(low) if self.attending else low
        y: Tensor = self.last(torch.cat([self.up(self.deep(low)), F.max_pool3d(skip, 3, 1, 1)], 1))
        return y


def _attended(x: Tensor) -> Tensor:
    """Every voxel looks at all of them, which shards have no rule for."""
    voxels = x.flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(voxels, voxels, voxels).transpose(1, 2).reshape(x.shape)


def build(dropout: float = 0.0, momentum: float = 0.1, attending: bool = False) -> nn.Module:
    """Without momentum running statistics are the averages of all batches."""
    return Net(dropout, momentum or None, attending).double()


def batch(n: int, side: int = 8) -> tuple[Tensor, Tensor]:
    shape = (n, 1, side, side, side)
    return torch.randn(shape, dtype=torch.float64), torch.randint(0, CLASSES, (n, *shape[2:]))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    truth = F.one_hot(labels, CLASSES).movedim(-1, 1).to(logits.dtype)
    guess = logits.softmax(1)
    both = (guess * truth).sum((2, 3, 4))
    dice = (2 * both + 1e-5) / (guess.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + 1e-5)
    return 1 - dice.mean() + F.cross_entropy(logits, labels)


def optimizer(named_parameters, lr: float = 0.05):  # type: ignore[no-untyped-def]
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9)
