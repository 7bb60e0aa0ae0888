"""The group of ranks that share a sample: a grid of ranks, what carries their messages, and sums over them.

A tensor that every rank holds whole carries its whole gradient on every rank. So gathering needs no message
backward, and an all-reduce passes its gradient on as it is. Where a whole tensor enters an operation on
shards, its gradient is summed over the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from time import monotonic_ns
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
MOST_LENT_NS = 20_000_000  # as long as a rank waits for a tensor that somebody else may rightly hold, too


class Wire(Protocol):
    """Messages within one group; ranks are positions in it."""

    rank: int
    size: int

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        """Starts all sends and receives.

        Args: each message is the other rank's position in the group, with the tensor to send or to fill.
        Returns: a function that waits until everything has been received.
        """

    def all_to_all(
        self, found: Tensor, sent: Tensor, found_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        """Sends a part of one tensor to each rank of the group, itself among them; all of them call this.

        Args: `found` is filled with what each rank sends to this one; both tensors have one dim and are dense. The sizes
            are in elements, by rank.
        """

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        """Reduces a tensor over all ranks of the group, in place.

        Args: `tensor` has one shape on all ranks; `operation` is "sum", "max" or "min".
        """


class GroupWire:
    """A wire over torch.distributed. Its group must not carry other point-to-point messages."""

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

    def all_to_all(
        self, found: Tensor, sent: Tensor, found_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        with _lent(found, sent) as views:  # which nothing here may hold besides
            dist.all_to_all_single(views[0], views[1], list(found_sizes), list(sent_sizes), group=self.group)

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        dist.all_reduce(tensor, _COLLECTIVE[operation], group=self.group)


@contextmanager
def _lent(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yields views for a collective on the host, and waits behind it until its thread has let go of them.

    A thread of gloo may hold tensors, and with them their memory, for milliseconds after a collective has ended.
    """
    before = [_users(x) for x in tensors]
    views = [x.detach() for x in tensors]
    yield views
    views.clear()
    last = monotonic_ns() + MOST_LENT_NS
    for x, users in zip(tensors, before, strict=True):
        while x.device.type == "cpu" and _users(x) > users and monotonic_ns() < last:
            os.sched_yield()


def _users(x: Tensor) -> int:
    return int(torch._C._storage_Use_Count(x.untyped_storage()._cdata))


@dataclass(frozen=True)
class SampleGroup:
    """The grid of ranks, seen from one of them."""

    grid: tuple[int, ...]
    wire: Wire

    def __post_init__(self) -> None:
        assert prod(self.grid) == self.wire.size, (self.grid, self.wire.size)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Returns this rank's coordinate along each axis of the grid."""
        return coordinates(self.wire.rank, self.grid)

    def peer(self, axis: int, place: int) -> int:
        """Returns the rank that differs from this one along one axis only.

        Args: `place` is the other rank's coordinate along `axis`.
        Returns: its position in the group.
        """
        position = list(self.coordinates)
        position[axis] = place
        return rank_at(position, self.grid)

    def members(self, axes: Collection[int]) -> list[int]:
        """Returns the ranks that share this one's coordinates along all other axes than `axes`, in order.

        Args: `axes` are numbers of axes of the grid.
        Returns: positions in the group, this rank's own among them.
        """
        own = self.coordinates
        others = [axis for axis in range(len(self.grid)) if axis not in axes]
        positions = (coordinates(rank, self.grid) for rank in range(self.wire.size))
        return [
            rank
            for rank, position in enumerate(positions)
            if all(position[axis] == own[axis] for axis in others)
        ]

    def stacked(self, tensor: Tensor, axes: Collection[int]) -> Tensor:
        """Gathers the tensors of all members in one message each; not differentiable.

        Args: `tensor` has one shape on all members; `axes` says who they are.
        Returns: the tensors in the order of members, along a new first dimension.
        """
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
        """Reduces a tensor over all members; not differentiable.

        Args: `tensor` has one shape on all members; `axes` says who they are.
        Returns: the same bits on each member; `tensor` itself where there is one member only.
        """
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
    """Passes a whole tensor to an operation on shards: its gradient becomes the sum over the ranks of these axes.

    Args: `axes` are those along which the operation is cut and the tensor is whole.
    Returns: a view of `x`.
    """
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
    """Passes on a parameter whose gradient is the same along some axes: only the first rank there counts it.

    Args: `axes` are those along which gradients differ; along the others they are the same.
    Returns: a view of `x`, whose gradient is zero on all ranks but the first.
    """
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
    """Returns the sum over ranks, whole on each of them; differentiable.

    Args: `x` has one shape on all ranks of `axes`.
    Returns: a tensor of that shape.
    """
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
    """Returns one slice a rank, whole on each of them; differentiable.

    Args: `x` has one shape on all ranks of `axes`.
    Returns: the ranks' tensors along a new first dimension.
    """
    result: Tensor = _Stack.apply(x, mesh, axes)  # type: ignore[no-untyped-call]
    return result
