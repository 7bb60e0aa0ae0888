"""Adds up what the shards of a round have made of a version, in the order of shards.

With the mean w' of the shards' weights, the version w and the momentum m, all in float64:

    change = w - w'        m' = momentum * m + change        next = w - rate * (change + momentum * m')

That is SGD with Nesterov's momentum on the mean change. With rate 1 and no momentum it is the mean itself. Numbers that
are not trained, such as running statistics, become their mean; whole numbers are those of the first shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.checkpoint import Checkpoint, CheckpointPart
from runtime.islands.folder import Outer


def added_up(version: Checkpoint, results: Sequence[Checkpoint], outer: Outer) -> CheckpointPart:
    """Returns the next version, tensor by tensor.

    Args: `results` are those of all shards, in their order.
    """
    trained = set(results[0].settings)
    tensors: dict[str, Tensor] = {}
    momentum: dict[str, Tensor] = {}
    for name in version.held:
        before = version.parameters([name])[name]
        after = [result.parameters([name])[name] for result in results]
        if not (before.is_floating_point() or before.is_complex()):
            tensors[name] = after[0]
        elif name not in trained or (outer.rate == 1 and not outer.momentum):
            tensors[name] = _mean(before, after).to(before.dtype)
        else:
            old = version.momentum([name]).get(name)
            tensors[name], moved = _stepped(before, _mean(before, after), old, outer)
            momentum |= {name: moved} if outer.momentum else {}
    return CheckpointPart(rank=0, tensors=tensors, momentum=momentum)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _mean(before: Tensor, after: Sequence[Tensor]) -> Tensor:
    """Returns the mean in float64; what no shard has changed stays to the bit."""
    if all(torch.equal(before, each) for each in after):
        return _wide(before)
    total = torch.zeros_like(_wide(before))
    for each in after:
        total += _wide(each)
    return total / len(after)


def _stepped(before: Tensor, mean: Tensor, old: Tensor | None, outer: Outer) -> tuple[Tensor, Tensor]:
    """Returns the weights after the step, and the momentum as it is kept."""
    wide = _wide(before)
    change = wide - mean
    moved = change if old is None else outer.momentum * _wide(old) + change
    kept = moved.to(torch.promote_types(before.dtype, torch.float32))
    after = wide - outer.rate * (change + outer.momentum * moved)
    return after.to(before.dtype), kept
