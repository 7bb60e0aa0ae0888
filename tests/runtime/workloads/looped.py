"""A network with all that people expect around a training: validation, metrics, a schedule, a sampler of its own."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

TRAINED, VALID = 23, 13  # no batch divides them


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, seed: int, length: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(length, 2, 8, 8, dtype=torch.float64, generator=draw)
        self.targets = self.inputs.mean(1, keepdim=True).tanh()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


def build(channels: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, channels, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(channels, 1, 1),
    ).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64), torch.randn(n, 1, 8, 8, dtype=torch.float64)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in named_parameters], lr=0.02)


def lr_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)


def dataset() -> Pictures:
    return Pictures(1, TRAINED)


def valid_dataset() -> Pictures:
    return Pictures(2, VALID)


def sampler(data: Pictures, seed: int, epoch: int) -> Sequence[int]:
    draw = torch.Generator().manual_seed(1000 * seed + epoch)
    return torch.multinomial(torch.arange(1.0, len(data) + 1), 2 * len(data), True, generator=draw).tolist()


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, int]]:
    near = (outputs - targets).abs() < 0.2
    return {
        "near": (near.sum(), targets.numel()),
        "error": ((outputs - targets).abs().sum(), targets.numel()),
    }
