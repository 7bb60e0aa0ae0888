"""How a tensor lies on a grid of ranks: which dimensions are cut, along which axis of the grid, and where.

A Layout without cuts means that every rank holds the whole tensor. Sizes are global. The batch is cut where ranks share samples, and nowhere else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from planner.errors import BadInput


class Cut(NamedTuple):
    axis: int  # of the grid
    points: tuple[int, ...]  # coordinate c holds rows points[c] up to points[c + 1]

    @property
    def size(self) -> int:
        return self.points[-1]

    def rows(self, coordinate: int) -> tuple[int, int]:
        return self.points[coordinate], self.points[coordinate + 1]


@dataclass(frozen=True, slots=True)
class Layout:
    shape: tuple[int, ...]
    cuts: tuple[Cut | None, ...]  # one entry a dimension

    def __post_init__(self) -> None:
        assert len(self.cuts) == len(self.shape), self
        assert len(self.axes) == len(self.cut_dims), "an axis of the grid cuts one dimension only"
        assert all(cut is None or cut.size == n for cut, n in zip(self.cuts, self.shape, strict=True)), self

    @property
    def cut_dims(self) -> tuple[int, ...]:
        return tuple(dim for dim, cut in enumerate(self.cuts) if cut is not None)

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(cut.axis for cut in self.cuts if cut is not None)

    @property
    def whole(self) -> bool:
        return not self.cut_dims

    def local_shape(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            n if cut is None else cut.points[coordinates[cut.axis] + 1] - cut.points[coordinates[cut.axis]]
            for n, cut in zip(self.shape, self.cuts, strict=True)
        )

    def region(self, coordinates: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Rows (start, stop) of every dimension that one rank holds."""
        return tuple(
            (0, n) if cut is None else cut.rows(coordinates[cut.axis])
            for n, cut in zip(self.shape, self.cuts, strict=True)
        )

    def with_cut(self, dim: int, cut: Cut | None) -> Layout:
        shape, cuts = list(self.shape), list(self.cuts)
        cuts[dim] = cut
        if cut is not None:
            shape[dim] = cut.size
        return Layout(tuple(shape), tuple(cuts))


def whole(shape: Sequence[int]) -> Layout:
    return Layout(tuple(shape), (None,) * len(shape))


def even(size: int, parts: int) -> tuple[int, ...]:
    """Cut points of as equal parts as can be."""
    return tuple(size * i // parts for i in range(parts + 1))


def scaled(points: Sequence[int], size: int) -> tuple[int, ...]:
    """The same cut of a dimension that became `size` long; evened out where a part would be empty."""
    old = points[-1]
    new = tuple((2 * p * size + old) // (2 * old) for p in points)
    return new if full(new) else even(size, len(points) - 1)


def full(points: Sequence[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(points))


def entry(shape: Sequence[int], grid: Sequence[int], first: int = 2) -> Layout:
    """How a tensor enters a segment: dimensions from `first` on cut evenly; whole if it has too few of them."""
    if len(shape) < first + len(grid) or prod(grid) == 1:
        return whole(shape)
    cuts: list[Cut | None] = [None] * len(shape)
    for axis, parts in enumerate(grid):
        if parts == 1:
            continue
        if shape[first + axis] < parts:
            return whole(shape)
        cuts[first + axis] = Cut(axis, even(shape[first + axis], parts))
    return Layout(tuple(shape), tuple(cuts))


def along(shape: Sequence[int], leading: Layout) -> Layout:
    """A target cut as its sample is, where its last dimensions are the sample's; else whole."""
    spatial = len(leading.shape) - 2
    first = len(shape) - spatial
    if (
        leading.whole
        or first < 1
        or tuple(shape[first:]) != leading.shape[2:]
        or shape[0] != leading.shape[0]
    ):
        return whole(shape)
    return Layout(tuple(shape), ((None,) * first) + leading.cuts[2:])


def check_grid(shape: Sequence[int], grid: Sequence[int], where: str = "spatial") -> None:
    """A grid that asks for more ranks than the input has rows, or for more dimensions than it has."""
    spatial = tuple(shape[2:])
    if len(grid) > len(spatial):
        raise BadInput(
            f"a grid of {len(grid)} dimensions over a sample of shape {tuple(shape[1:])}",
            where=where,
            allowed=f"at most {len(spatial)} spatial dimensions; batch and channels are not cut as space",
        )
    for dim, (rows, parts) in enumerate(zip(spatial, grid, strict=False)):
        if parts > rows:
            raise BadInput(
                f"{parts} ranks for {rows} rows of spatial dimension {dim}",
                where=where,
                allowed=f"1 to {rows}",
            )


def coordinates(rank: int, grid: Sequence[int]) -> tuple[int, ...]:
    """Position of a rank on the grid, last axis fastest."""
    found = []
    for parts in reversed(grid):
        found.append(rank % parts)
        rank //= parts
    return tuple(reversed(found))


def middle_of(grid: Sequence[int]) -> tuple[int, ...]:
    """Coordinates of a rank that has neighbours on both sides where any has."""
    return tuple(parts // 2 for parts in grid)


def neighbours(grid: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of ranks that lie side by side along an axis."""
    every = range(prod(grid))
    return [(a, b) for a in every for b in every if a < b and _apart(a, b, grid) == 1]


def _apart(a: int, b: int, grid: Sequence[int]) -> int:
    return sum(abs(x - y) for x, y in zip(coordinates(a, grid), coordinates(b, grid), strict=True))


def rank_at(position: Sequence[int], grid: Sequence[int]) -> int:
    rank = 0
    for place, parts in zip(position, grid, strict=True):
        rank = rank * parts + place
    return rank


def shard_elements(layout: Layout, grid: Sequence[int]) -> int:
    """Elements that the rank with the largest part holds."""
    return max(prod(layout.local_shape(coordinates(rank, grid))) for rank in range(prod(grid)))
