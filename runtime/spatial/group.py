"""Who talks to whom within the group that shares a sample: a grid of ranks, and what carries their messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import coordinates, rank_at

Operation = Literal["sum", "max", "min"]
Message = tuple[int, Tensor]  # rank within the group, and what is sent or received into
_COLLECTIVE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


FEW, SMALL = 3, 4096  # ranks and elements for which messages to each other take less than an all-reduce


class Wire(Protocol):
    """Messages within one group; ranks are positions in it."""

    rank: int
    size: int

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        """Starts all of them; the function returned waits until what was received is there."""

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None: ...


class GroupWire:
    """Over torch.distributed. The group must not carry other point-to-point messages."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        incoming = [(dist.irecv, tensor, peer) for peer, tensor in receives]
        outgoing = [(dist.isend, tensor, peer) for peer, tensor in sends]
        operations = [
            dist.P2POp(kind, tensor, group=self.group, group_peer=peer)
            for kind, tensor, peer in (*incoming, *outgoing)
        ]
        works = dist.batch_isend_irecv(operations) if operations else []

        def wait() -> None:
            for work in works:
                work.wait()

        return wait

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        dist.all_reduce(tensor, _COLLECTIVE[operation], group=self.group)


@dataclass(frozen=True)
class SampleGroup:
    """The grid seen from one rank."""

    grid: tuple[int, ...]
    wire: Wire

    def __post_init__(self) -> None:
        assert prod(self.grid) == self.wire.size, (self.grid, self.wire.size)

    @property
    def coordinates(self) -> tuple[int, ...]:
        return coordinates(self.wire.rank, self.grid)

    def peer(self, axis: int, place: int) -> int:
        """The rank that differs from this one along one axis only."""
        position = list(self.coordinates)
        position[axis] = place
        return rank_at(position, self.grid)

    def members(self, axes: Collection[int]) -> list[int]:
        """Ranks that differ from this one along some of the axes at most, in order."""
        own = self.coordinates
        others = [axis for axis in range(len(self.grid)) if axis not in axes]
        positions = (coordinates(rank, self.grid) for rank in range(self.wire.size))
        return [
            rank
            for rank, position in enumerate(positions)
            if all(position[axis] == own[axis] for axis in others)
        ]

    def stacked(self, tensor: Tensor, axes: Collection[int]) -> Tensor:
        """The tensors of all members, in order, along a new first dimension. One packed message each."""
        members, own = self.members(axes), tensor.detach().contiguous()
        parts = torch.empty((len(members), *own.shape), dtype=own.dtype, device=own.device)
        others = [(i, rank) for i, rank in enumerate(members) if rank != self.wire.rank]
        wait = self.wire.exchange(
            [(rank, own) for _, rank in others], [(rank, parts[i]) for i, rank in others]
        )
        parts[members.index(self.wire.rank)] = own
        wait()
        return parts

    def reduce(self, tensor: Tensor, axes: Collection[int], operation: Operation = "sum") -> Tensor:
        """Over all members; the same bits on each."""
        members = self.members(axes)
        if len(members) == 1:
            return tensor
        if len(members) < self.wire.size or (len(members) <= FEW and tensor.numel() <= SMALL):
            parts = self.stacked(tensor, axes)
            if operation == "sum":
                return parts.sum(0).to(tensor.dtype)
            return parts.amax(0) if operation == "max" else parts.amin(0)
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.wire.all_reduce(result, operation)
        return result


class _Context(FunctionCtx):
    mesh: SampleGroup
    axes: Collection[int]
    row: int  # of this rank among the members
    keep: bool


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
        ctx.mesh, ctx.axes = mesh, axes
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return ctx.mesh.reduce(grad, ctx.axes), None, None


def enter(x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
    """A whole tensor used by an operation on shards: its gradient is the sum over the ranks of these axes."""
    result: Tensor = _Enter.apply(x, mesh, axes)  # type: ignore[no-untyped-call]
    return result


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, keep: bool) -> Tensor:
        ctx.keep = keep
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return grad if ctx.keep else torch.zeros_like(grad), None


def once(x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
    """A parameter whose gradient is the same along some axes: only the first rank there counts it."""
    first = all(place == 0 for axis, place in enumerate(mesh.coordinates) if axis not in axes)
    result: Tensor = _Once.apply(x, first)  # type: ignore[no-untyped-call]
    return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
        return mesh.reduce(x, axes)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return grad, None, None


def summed(x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
    """The sum over ranks, whole on each of them."""
    result: Tensor = _Sum.apply(x, mesh, axes)  # type: ignore[no-untyped-call]
    return result


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
        ctx.row = mesh.members(axes).index(mesh.wire.rank)
        return mesh.stacked(x, axes)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return grad[ctx.row], None, None


def stacked(x: Tensor, mesh: SampleGroup, axes: Collection[int]) -> Tensor:
    """One slice a rank, whole on each of them."""
    result: Tensor = _Stack.apply(x, mesh, axes)  # type: ignore[no-untyped-call]
    return result
