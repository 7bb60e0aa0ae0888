"""Moves a tensor from one grid of the ranks to another, and its gradient back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import Resplit, coordinates
from runtime.spatial.exchange import memory_format
from runtime.spatial.group import Wire

Rows = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Moved:
    """A change of grid, as a call in a stage's graph."""

    plan: Resplit
    wire: Wire

    def __call__(self, x: Tensor) -> Tensor:
        if self.plan.shared and self.plan.source.whole and not x.requires_grad:
            share = x.shape[self.plan.samples] // self.wire.size
            return x.narrow(self.plan.samples, self.wire.rank * share, share)
        result: Tensor = _Moved.apply(x, self.plan, self.wire)  # type: ignore[no-untyped-call]
        return result


class _Context(FunctionCtx):
    plan: Resplit
    wire: Wire


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, plan: Resplit, wire: Wire) -> Tensor:
        ctx.wire, ctx.plan = wire, plan.of(x.shape[plan.samples]) if plan.shared else plan
        return moved(x, ctx.plan, wire)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return moved(grad, ctx.plan.back, ctx.wire), None, None


def moved(x: Tensor, plan: Resplit, wire: Wire) -> Tensor:
    """Exchanges parts of a tensor so that each rank holds its part on the new grid; not differentiable.

    Args: `x` is this rank's part on the old grid.
    Returns: this rank's part on the new grid, in the memory format of `x`.
    """
    mine, own, new = wire.rank, plan.held(wire.rank), plan.wanted(wire.rank)
    out = torch.empty(_shape(x, plan, mine), dtype=x.dtype, device=x.device, memory_format=memory_format(x))
    sends = [
        (receiver, _part(x, plan.dims, piece.rows, own).contiguous())
        for receiver in range(wire.size)
        if receiver != mine
        for piece in plan.pieces(receiver)
        if piece.sender == mine
    ]
    places = [(piece.sender, _part(out, plan.dims, piece.rows, new)) for piece in plan.pieces(mine)]
    arriving = [
        (sender, torch.empty(place.shape, dtype=x.dtype, device=x.device), place)
        for sender, place in places
        if sender != mine
    ]
    wait = wire.exchange(sends, [(sender, buffer) for sender, buffer, _ in arriving])
    for piece in plan.pieces(mine):
        if piece.sender == mine:
            _part(out, plan.dims, piece.rows, new).copy_(_part(x, plan.dims, piece.rows, own))
    wait()
    for _, buffer, place in arriving:
        place.copy_(buffer)
    return out


def _shape(x: Tensor, plan: Resplit, rank: int) -> list[int]:
    """Returns the shape of a rank's new part; sizes that are not cut are those of `x`, since the plan
    knows an example's batch only."""
    made = plan.target.local_shape(coordinates(rank, plan.after))
    return [made[dim] if dim in plan.dims else n for dim, n in enumerate(x.shape)]


def _part(x: Tensor, dims: Sequence[int], rows: Rows, held: Rows) -> Tensor:
    for dim, (low, high), (first, _) in zip(dims, rows, held, strict=True):
        x = x.narrow(dim, low - first, high - low)
    return x
