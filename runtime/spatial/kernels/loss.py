"""Losses on shards: each rank sums its part; sums and counts are added up in one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from planner.spatial import LOSSES
from runtime.spatial.group import summed
from runtime.spatial.operation import Kernel, Local

NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for the reduction


def cross_entropy(local: Local) -> Tensor:
    """Returns the cross entropy or negative log likelihood over all shards, weighted as torch does.

    Args: `local` has this rank's part of predictions and targets.
    Returns: the loss, whole on each rank; without reduction this rank's part.
    """
    return _combined(local, _weight_counted)


def elementwise(local: Local) -> Tensor:
    """Returns a loss that takes each element for itself, reduced over all shards.

    Args: `local` has this rank's part of predictions and targets.
    Returns: the loss, whole on each rank; without reduction this rank's part.
    """
    return _combined(local, lambda local: torch.tensor(float(local.tensor("self").numel())))


def _combined(local: Local, counted: Kernel) -> Tensor:
    reduction = local.call.integer("reduction", MEAN)
    if reduction == NONE:
        return local.run()
    own = local.run(reduction=SUM)
    count = counted(local)
    assert isinstance(count, Tensor)
    both = torch.stack([own.double(), count.detach().to(own.device, torch.float64)])
    found, elements = summed(both, local.mesh, local.step.axes).unbind()
    return (found if reduction == SUM else found / elements).to(own.dtype)


def _weight_counted(local: Local) -> Tensor:
    """Returns what the mean divides by: the weight of the classes that count, or the number of positions."""
    x, target = local.tensor("self"), local.tensor("target")
    if target.is_floating_point():
        return torch.tensor(float(x.numel() // x.shape[1]))
    counts = target.ne(local.call.integer("ignore_index"))
    weight = local.arguments["weight"]
    if not isinstance(weight, Tensor):
        return counts.sum()
    return weight[target.masked_fill(~counts, 0)].masked_fill(~counts, 0).sum()


KERNELS: Final[Mapping[str, Kernel]] = {
    "aten.cross_entropy_loss": cross_entropy,
    "aten.nll_loss_nd": cross_entropy,
} | {f"aten.{name}": elementwise for name in LOSSES}
