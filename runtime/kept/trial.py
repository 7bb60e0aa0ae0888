"""Refuses optimizers that mix the entries of a tensor, before anything is trained with them.

An update of kept entries alone is right only if an optimizer updates each entry by itself. So it is tried: a few
updates of stand-ins of 64 numbers, compressed and whole with the same mask on gradients, must be equal to the bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from planner.errors import BadInput
from planner.model import ModelGraph, Parameter
from runtime.update import Make, OwnPart, made

NUMBERS = 64
UPDATES = 3
MOST = 12  # stand-ins


def refuse_mixing(make: Make, graph: ModelGraph, kept: Mapping[str, int], where: str = "") -> None:
    """Raises BadInput where the user's optimizer cannot update kept entries as it updates them in whole parameters.

    Args: `kept` names the pruned parameters of the model; `where` is the workload in messages.
    """
    rows = _chosen([graph.parameter[name] for name in kept])
    whole, index = {row.name: _start(row) for row in rows}, {row.name: _kept(row) for row in rows}
    masked = [OwnPart(row.name, 0, NUMBERS, nn.Parameter(whole[row.name])) for row in rows]
    leaves = [_compressed(row, whole[row.name], index[row.name]) for row in rows]
    name = "the optimizer"
    try:
        ends = []
        for pieces in (masked, leaves):
            optimizer = made(make, pieces)
            if optimizer is None:
                return
            name = type(optimizer).__name__
            for step in range(UPDATES):
                for piece in pieces:
                    piece.tensor.grad = _gradient(piece, index[piece.name], step)
                optimizer.step()
            ends.append([piece.tensor.detach() for piece in pieces])
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{name} cannot update the kept entries of pruned weights: {type(error).__name__}: {error}",
            where=where,
            allowed="an optimizer that steps from gradients alone, and each entry by itself, such as AdamW or SGD",
        ) from error
    for piece, dense, leaf in zip(masked, *ends, strict=True):
        if not torch.equal(dense.reshape(-1)[index[piece.name]], leaf.reshape(-1)):
            raise BadInput(
                f"{name} mixes the entries of a tensor, so that those kept of '{piece.name}' would be updated otherwise",
                where=where,
                allowed="an optimizer that updates each entry by itself, such as AdamW or SGD; or a dense plan",
            )


def _chosen(rows: Sequence[Parameter]) -> list[Parameter]:
    """Returns a few parameters from all over a model, and one of each number of dims and type."""
    kinds = {(len(row.shape), row.dtype): row for row in rows}
    spread = rows[:: max(1, -(-len(rows) // MOST))]
    return list({row.name: row for row in (*spread, *kinds.values())}.values())


def _shape(dims: int) -> tuple[int, ...]:
    """Returns a shape of 64 numbers: dims of eight, four or two, and of one where there are many."""
    sizes, left = [], NUMBERS
    for more in range(dims - 1, -1, -1):
        size = next(x for x in (8, 4, 2, 1) if more == 0 or left // x >= 2**more or x == 1)
        sizes.append(left if more == 0 else size)
        left //= sizes[-1]
    return tuple(sizes)


def _drawn(name: str, number: int) -> Tensor:
    seed = torch.Generator().manual_seed(zlib.crc32(f"{name}/{number}".encode()))
    return torch.randn(NUMBERS, generator=seed, dtype=torch.float64)


def _start(row: Parameter) -> Tensor:
    """Returns the stand-in of a parameter, zero where it is pruned."""
    found = torch.zeros(NUMBERS, dtype=torch.float64)
    found[_kept(row)] = _drawn(row.name, 0)[_kept(row)]
    return found.to(getattr(torch, row.dtype)).view(_shape(len(row.shape)))


def _kept(row: Parameter) -> Tensor:
    return torch.sort(_drawn(row.name, -1).abs().topk(NUMBERS // 3).indices).values


def _compressed(row: Parameter, whole: Tensor, index: Tensor) -> OwnPart:
    entries = whole.reshape(-1)[index].view(*[1] * (whole.ndim - 1), -1)
    leaf = nn.Parameter(entries.clone())
    return OwnPart(row.name, 0, len(index), leaf, nn.Parameter(whole.clone()), index)


def _gradient(piece: OwnPart, index: Tensor, step: int) -> Tensor:
    """Returns the gradient of a stand-in, zero where it is pruned."""
    drawn = _drawn(piece.name, step + 1).to(piece.tensor.dtype)
    if piece.whole is not None:
        return drawn[index].view(piece.tensor.shape)
    masked = torch.zeros_like(drawn)
    masked[index] = drawn[index]
    return masked.view(piece.tensor.shape)
