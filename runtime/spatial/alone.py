"""One shard by itself, for the profiler: it computes as it will among its neighbours, whose messages are zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from torch import Tensor

from planner.capture import StageModule
from planner.spatial import Layout, middle_of, rank_at
from runtime.spatial.analyse import analyse
from runtime.spatial.group import Message, Operation, SampleGroup
from runtime.spatial.shard import shard


class Silence:
    """A wire at whose other end is nobody."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        for _, tensor in receives:
            tensor.zero_()
        return lambda: None

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        pass


class AloneShard:
    def layouts(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout]
    ) -> Mapping[str, Layout]:
        return analyse(module, grid, delivered).outputs

    def shard(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout], *, owing: bool
    ) -> None:
        """The shard in the middle: it has neighbours on both sides where any has."""
        middle = rank_at(middle_of(grid), grid)
        mesh = SampleGroup(grid, Silence(middle, prod(grid)))
        shard(module, analyse(module, grid, delivered), mesh, overlap=not owing)
