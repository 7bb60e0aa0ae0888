"""Who talks to whom within the group that shares a sample: a grid of ranks, and what carries their messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

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
