"""Modules that ask torch.distributed whether other ranks are there, each in another place of a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8

opaque = ["1", "2", "loss"]


def ranks() -> int:
    """What a module that knows DistributedDataParallel asks."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size() + dist.get_rank()


class Forward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.SyncBatchNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        y = y.tanh() if y.sum() > 1e9 else y * ranks()  # no trace follows this branch
        return y + 0.0 * self.norm(y.detach()).sum()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * ranks()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * ranks()


class Backward(nn.Module):
    """Asks in a backward pass of its own, in a hook, and in what checkpointing would compute once more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Scaled.apply(self.first(x))
        if y.sum() > 1e9:
            return y
        if y.requires_grad:
            y.register_hook(lambda grad: grad * ranks())
        for reentrant in (False, True):
            y = checkpoint(lambda z: self.second(z * ranks()).tanh() * ranks(), y, use_reentrant=reentrant)
        return y


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Forward(), Backward(), nn.Linear(WIDTH, 3))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, WIDTH), torch.randn(n, 3)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    made = (outputs - targets).square().mean()
    return made * ranks() if made < 1e9 else made


def optimizer(parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([x for _, x in parameters], lr=0.05)
