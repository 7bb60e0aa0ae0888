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
    """A wire at whose other end is nobody: what is received is zeros."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        for _, tensor in receives:
            tensor.zero_()
        return lambda: None

    def all_reduce(self, tensor: Tensor, operation: Operation) -> None:
        pass


class AloneShard:
    """The profiler's way to shards: rewrites a stage for one rank of a grid that has no other ranks."""

    def layouts(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout]
    ) -> Mapping[str, Layout]:
        """Returns how a stage on shards lays out what it makes.

        Args: `grid` has the parts along each axis; `delivered` has the layouts of the Values that come cut.
        Returns: the layout of each output, by the name of its Value.
        """
        return analyse(module, grid, delivered).outputs

    def shard(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout], *, owing: bool
    ) -> None:
        """Rewrites a stage for the shard in the middle, which has neighbours on both sides where any has.

        Args: `module` is changed in place; with `owing` its convolutions stay nodes that can put off their
            weight gradients.
        """
        middle = rank_at(middle_of(grid), grid)
        mesh = SampleGroup(grid, Silence(middle, prod(grid)))
        shard(module, analyse(module, grid, delivered), mesh, overlap=not owing)
