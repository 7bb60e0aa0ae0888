"""Exchanges the samples of a window among nodes: one all-to-all, in rounds of bounded bytes, on a group of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from planner.arrays import IntArray

ROUND_BYTES = 2**22  # that a node sends in a round, at most


@dataclass(frozen=True)
class Pieces:
    """Pieces of a memory that are sent or received one after the other as one stream of bytes."""

    offsets: IntArray  # of each piece in the memory
    ends: IntArray  # of each piece in the stream

    @classmethod
    def of(cls, offsets: IntArray, sizes: IntArray) -> Pieces:
        """Returns the pieces at some offsets.

        Args: `sizes` are their bytes.
        """
        return cls(offsets, np.cumsum(sizes))

    @property
    def bytes(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def each(self, first: int, end: int, do: Callable[[int, int, int], None]) -> None:
        """Calls a function for each piece of a stretch of the stream.

        Args: the stretch goes from byte `first` to `end`; `do` gets the place in the memory, the place after `first`,
            and the number of bytes.
        """
        number, at = int(np.searchsorted(self.ends, first, "right")), first
        while at < end:
            stop = min(int(self.ends[number]), end)
            begin = int(self.ends[number - 1]) if number else 0
            do(int(self.offsets[number]) + at - begin, at - first, stop - at)
            number, at = number + 1, stop


def exchange(
    part: memoryview,
    target: memoryview,
    sends: Sequence[Pieces],
    receives: Sequence[Pieces],
    rounds: int,
    group: dist.ProcessGroup,
    moved: Callable[[], object],
) -> int:
    """Sends each node the pieces of the own part that it needs, and receives what this one needs; collective.

    Args: `sends` are pieces of `part`, and `receives` pieces of `target`, both by node. `rounds` is the same on all;
        `moved` is called after each.
    Returns: the bytes that were received.
    """
    most, came = ROUND_BYTES // len(sends), 0
    for number in range(rounds):
        first = number * most
        out = [max(0, min(most, spans.bytes - first)) for spans in sends]
        come = [max(0, min(most, spans.bytes - first)) for spans in receives]
        sent, got = torch.empty(sum(out), dtype=torch.uint8), torch.empty(sum(come), dtype=torch.uint8)
        _gather(part, _bytes(sent), sends, first, out)
        dist.all_to_all_single(got, sent, come, out, group=group)
        _scatter(target, _bytes(got), receives, first, come)
        came += len(got)
        moved()
    return came


def _bytes(wire: Tensor) -> memoryview:
    found: Any = wire.numpy()  # mypy does not know that arrays are buffers
    return memoryview(found)


def rounds_of(table: Sequence[Sequence[int]]) -> int:
    """Returns the rounds that an exchange takes.

    Args: `table` has the bytes from each node to each other.
    """
    most = ROUND_BYTES // max(1, len(table))
    return max((-(-size // most) for row in table for size in row), default=0)


def _gather(
    part: memoryview, wire: memoryview, sends: Sequence[Pieces], first: int, sizes: Sequence[int]
) -> None:
    base = 0
    for spans, size in zip(sends, sizes, strict=True):

        def copy(place: int, after: int, count: int, base: int = base) -> None:
            wire[base + after : base + after + count] = part[place : place + count]

        spans.each(first, first + size, copy)
        base += size


def _scatter(
    target: memoryview, wire: memoryview, receives: Sequence[Pieces], first: int, sizes: Sequence[int]
) -> None:
    base = 0
    for spans, size in zip(receives, sizes, strict=True):

        def copy(place: int, after: int, count: int, base: int = base) -> None:
            target[place : place + count] = wire[base + after : base + after + count]

        spans.each(first, first + size, copy)
        base += size
