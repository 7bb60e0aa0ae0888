"""A small classifier of volumes, in double precision if not asked otherwise: convolutions with batch norms, and a head that drops and norms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


class Net(nn.Module):
    def __init__(self, dropout: float, mixing: bool, momentum: float | None) -> None:
        super().__init__()
        self.mixing = mixing
        self.first = nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm3d(4, momentum=momentum),
            nn.ReLU(inplace=True),
        )
        self.down = nn.Sequential(
            nn.Conv3d(4, 4, 3, 2, 1, bias=False),
            nn.BatchNorm3d(4, momentum=momentum),
            nn.GELU(),
            nn.MaxPool3d(2),
        )
        self.deep = nn.Conv3d(4, 8, 3, padding=1, bias=False)
        self.drop = nn.Dropout3d(dropout)
        self.wide = nn.Linear(8 * 8, 16, bias=False)
        self.norm = nn.BatchNorm1d(16, momentum=momentum)
        self.last = nn.Linear(16, CLASSES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        low = self.drop(self.deep(self.down(self.first(x)))).flatten(1)
        wide = self.dropout(self.norm(self.wide(low)))
        if self.mixing:
            wide = wide + wide.flip(0)
        y: Tensor = self.last(wide)
        return y


def build(
    dropout: float = 0.0, mixing: bool = False, double: bool = True, momentum: float = 0.1
) -> nn.Module:
    """Without momentum running statistics are the averages of all batches."""
    net = Net(dropout, mixing, momentum or None)
    return net.double() if double else net


def batch(n: int, side: int = 8, double: bool = True) -> tuple[Tensor, Tensor]:
    shape = (n, 1, side, side, side)
    return torch.randn(shape, dtype=torch.float64 if double else None), torch.randint(0, CLASSES, (n,))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def optimizer(named_parameters, lr: float = 0.05):  # type: ignore[no-untyped-def]
    return torch.optim.SGD(named_parameters, lr=lr, momentum=0.9)
