"""From one grid of ranks to another: which part of a tensor each rank sends each other, an all-to-all.

Every rank sends what its old part and the others' new ones share; what it has itself stays. The gradient goes the
same way back: where several ranks hold a part alike each has the whole gradient of it, so that nothing is summed.
Shares of the samples are one more way that a tensor may lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from planner.spatial.layout import Cut, Layout, coordinates, entry, even, whole
from planner.spatial.operation import NONE, Operation
from planner.spatial.rule import NoRule

Grid = tuple[int, ...]
SPACE = 2  # dimensions in front of those of space: samples and channels


def mesh_of(grid: Grid, ranks: int) -> Grid:
    """A grid over all ranks of a group: where it has fewer cells, a last axis of ranks that compute a cell alike."""
    return grid if prod(grid) == ranks else (*grid, ranks // prod(grid))


@dataclass(frozen=True, slots=True)
class Grids:
    """Of the ranks that share a sample: the first grid, those from other layers on, and on which tensors come."""

    ranks: int
    first: Grid
    turns: Mapping[str, Grid] = field(default_factory=dict)
    lying: Mapping[str, Grid] = field(default_factory=dict)  # by name, of all ranks; others lie on the first
    shares: str = ""  # the layer from which on each rank has whole samples of its own, if any
    samples: Mapping[str, int] = field(
        default_factory=dict
    )  # by name of what is given, the dim of its samples
    turners: Mapping[str, Operation] = field(default_factory=dict)  # of what is given, as of a segment

    @property
    def mesh(self) -> Grid:
        return mesh_of(self.first, self.ranks)


ALONE: Final = Grids(1, ())


class Piece(NamedTuple):
    """Global rows [low, high) of the dimensions that are cut before or after."""

    sender: int
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Resplit:
    source: Layout
    before: Grid  # of all ranks, see `mesh_of`
    target: Layout
    after: Grid
    samples: int = NONE  # the dimension of samples, where those are shared before or after

    @property
    def back(self) -> Resplit:
        return Resplit(self.target, self.after, self.source, self.before, self.samples)

    @property
    def shared(self) -> bool:
        return self.samples != NONE

    def of(self, rows: int) -> Resplit:
        """The same of as many rows of samples as there are here; what was planned with is an example."""
        return self if rows == self.source.shape[self.samples] else _of(self, rows)

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(sorted({*self.source.cut_dims, *self.target.cut_dims}))

    def held(self, rank: int) -> tuple[tuple[int, int], ...]:
        region = self.source.region(coordinates(rank, self.before))
        return tuple(region[dim] for dim in self.dims)

    def wanted(self, rank: int) -> tuple[tuple[int, int], ...]:
        return self.back.held(rank)

    def pieces(self, receiver: int) -> Iterator[Piece]:
        """What a rank puts its new part together from: its own rows first of all, else those of one that has them."""
        wanted = self.wanted(receiver)
        holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank in range(prod(self.before)):
            holders.setdefault(self.held(rank), []).append(rank)
        for held, ranks in holders.items():
            rows = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True))
            if all(low < high for low, high in rows):
                yield Piece(receiver if receiver in ranks else ranks[receiver % len(ranks)], rows)

    def sent_elements(self) -> int:
        """Of the rank that sends most."""
        sent = [0] * prod(self.before)
        others = prod(n for dim, n in enumerate(self.source.shape) if dim not in self.dims)
        for receiver in range(len(sent)):
            for piece in self.pieces(receiver):
                if piece.sender != receiver:
                    sent[piece.sender] += others * prod(high - low for low, high in piece.rows)
        return max(sent)

    def made_elements(self) -> int:
        """Of the largest new part."""
        return max(
            prod(self.target.local_shape(coordinates(rank, self.after))) for rank in range(prod(self.after))
        )


@lru_cache(maxsize=4096)
def _of(plan: Resplit, rows: int) -> Resplit:
    return Resplit(
        _sized(plan.source, plan.samples, rows),
        plan.before,
        _sized(plan.target, plan.samples, rows),
        plan.after,
        plan.samples,
    )


def _sized(layout: Layout, dim: int, size: int) -> Layout:
    shape, cuts, cut = list(layout.shape), list(layout.cuts), layout.cuts[dim]
    shape[dim] = size
    cuts[dim] = None if cut is None else Cut(cut.axis, even(size, len(cut.points) - 1))
    return Layout(tuple(shape), tuple(cuts))


def turned(layout: Layout) -> bool:
    """Whether its dimensions are not samples, channels, then space."""
    return any(cut is not None and dim != SPACE + cut.axis for dim, cut in enumerate(layout.cuts))


def resplit(
    source: Layout, before: Grid, grid: Grid, ranks: int, reader: str, turner: Operation | None = None
) -> Resplit:
    """To even parts of a grid; whole where that is empty. NoRule where it cannot be told which dimension is which:
    it names the operation that has turned them, if that is known."""
    if grid and turned(source):
        shown, cut = " x ".join(map(str, grid)), list(source.cut_dims)
        moved = f"{turner.operation} moves what" if turner is not None else "what"
        raise NoRule(
            f"{moved} is cut to dimensions {cut}, which is not re-split to a grid of {shown} before layer '{reader}'",
            where=turner.place if turner is not None else reader,
            allowed=f"samples and channels first, then space; or a gather before layer '{reader}'",
            layer=reader,
        )
    target = entry(source.shape, grid) if grid else whole(source.shape)
    return Resplit(source, before, target, mesh_of(grid, ranks) if grid else (ranks,))
