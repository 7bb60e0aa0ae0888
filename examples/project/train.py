"""The workload: what shardwright profiles, plans for and trains."""

from collections.abc import Iterable

import torch
from segmenter.data import Discs
from segmenter.network import Segmenter
from torch import Tensor, nn

SIDE = 24


def build(width: int = 8) -> nn.Module:
    return Segmenter(width, classes=2)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, SIDE, SIDE), torch.randint(2, (n, SIDE, SIDE))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """No weight decay for norms and biases."""
    large, small = [], []
    for _, parameter in named_parameters:
        (large if parameter.ndim > 1 else small).append(parameter)
    groups = [{"params": large, "weight_decay": 0.01}, {"params": small, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3)


def dataset() -> Discs:
    return Discs(count=256, side=SIDE)
