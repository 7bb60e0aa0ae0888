"""Describes how a tensor lies on a grid of ranks: which dimensions are cut, along which axis of the grid, and where.

A Layout without cuts means that every rank holds the whole tensor. Sizes are global. The batch is cut where ranks
share samples, and nowhere else.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from planner.errors import BadInput

REMEMBERED = 1 << 14  # results of a question about layouts: hundreds of choices ask the same ones


class Cut(NamedTuple):
    """The cut of one dimension of a tensor along one axis of the grid."""

    axis: int  # of the grid
    points: tuple[int, ...]  # coordinate c holds rows points[c] up to points[c + 1]

    @property
    def size(self) -> int:
        """Returns the rows of the whole dimension."""
        return self.points[-1]

    def rows(self, coordinate: int) -> tuple[int, int]:
        """Returns the rows (start, stop) of the shard at a coordinate.

        Args: `coordinate` counts along the axis of the grid.
        """
        return self.points[coordinate], self.points[coordinate + 1]


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor's global shape and the cut of each of its dimensions; None where a dimension is not cut."""

    shape: tuple[int, ...]
    cuts: tuple[Cut | None, ...]  # one entry a dimension

    def __post_init__(self) -> None:
        assert len(self.cuts) == len(self.shape), self
        assert len(self.axes) == len(self.cut_dims), "an axis of the grid cuts one dimension only"
        assert all(cut is None or cut.size == n for cut, n in zip(self.cuts, self.shape, strict=True)), self

    @property
    def cut_dims(self) -> tuple[int, ...]:
        """Returns the dimensions that are cut, in ascending order."""
        return tuple(dim for dim, cut in enumerate(self.cuts) if cut is not None)

    @property
    def axes(self) -> frozenset[int]:
        """Returns the axes of the grid along which the tensor is cut."""
        return frozenset(cut.axis for cut in self.cuts if cut is not None)

    @property
    def whole(self) -> bool:
        """Returns whether every rank holds the whole tensor."""
        return not self.cut_dims

    def local_shape(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of one rank's shard.

        Args: `coordinates` are the rank's position on the grid, see `coordinates`.
        """
        return tuple(
            n if cut is None else cut.points[coordinates[cut.axis] + 1] - cut.points[coordinates[cut.axis]]
            for n, cut in zip(self.shape, self.cuts, strict=True)
        )

    def region(self, coordinates: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Returns the rows (start, stop) of every dimension that one rank holds.

        Args: `coordinates` are the rank's position on the grid.
        """
        return tuple(
            (0, n) if cut is None else cut.rows(coordinates[cut.axis])
            for n, cut in zip(self.shape, self.cuts, strict=True)
        )

    def with_cut(self, dim: int, cut: Cut | None) -> Layout:
        """Returns this layout with another cut of one dimension.

        Args: `cut` also sets the size of the dimension; None makes the dimension whole and keeps its size.
        """
        shape, cuts = list(self.shape), list(self.cuts)
        cuts[dim] = cut
        if cut is not None:
            shape[dim] = cut.size
        return Layout(tuple(shape), tuple(cuts))


def whole(shape: Sequence[int]) -> Layout:
    """Returns the layout of a tensor that every rank holds whole.

    Args: `shape` is the global shape.
    """
    return Layout(tuple(shape), (None,) * len(shape))


def even(size: int, parts: int) -> tuple[int, ...]:
    """Returns the points that cut a dimension into parts as equal as can be.

    Returns: `parts + 1` rows from 0 to `size`.
    """
    return tuple(size * i // parts for i in range(parts + 1))


def scaled(points: Sequence[int], size: int) -> tuple[int, ...]:
    """Returns the points of a cut, moved to a dimension that became `size` long.

    Args: `points` cut the old dimension, whose size is the last of them.
    Returns: points in the same proportions, rounded; even ones where a part would be empty.
    """
    old = points[-1]
    new = tuple((2 * p * size + old) // (2 * old) for p in points)
    return new if full(new) else even(size, len(points) - 1)


def full(points: Sequence[int]) -> bool:
    """Returns whether no part of a cut is empty.

    Args: `points` are the cut points from 0 to the size.
    """
    return all(a < b for a, b in itertools.pairwise(points))


def entry(shape: Sequence[int], grid: Sequence[int], first: int = 2) -> Layout:
    """Returns the layout in which a tensor enters a segment: dimensions from `first` on are cut evenly.

    Args: `grid` has one number of parts a dimension; `first` is the first dimension of space.
    Returns: a whole layout where the tensor has too few dimensions, or a dimension too few rows.
    """
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
    """Returns the layout of a target that is cut as its sample is.

    Args: `shape` is the target's; `leading` is the layout of the sample.
    Returns: a whole layout where the target's last dimensions are not the sample's.
    """
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
    """Refuses a grid that an input cannot be cut by.

    Args: `shape` is the input's, samples and channels first; `where` names the input in errors.
    Raises: BadInput where the grid has more dimensions than the sample, or asks for more ranks than there are rows.
    """
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
    """Returns the position of a rank on the grid.

    Args: `rank` counts cells of the grid, the last axis fastest.
    Returns: one coordinate for each axis; `rank_at` is the inverse.
    """
    found = []
    for parts in reversed(grid):
        found.append(rank % parts)
        rank //= parts
    return tuple(reversed(found))


def middle_of(grid: Sequence[int]) -> tuple[int, ...]:
    """Returns the coordinates of a rank that has neighbours on both sides where any rank has.

    Args: `grid` has the number of parts along each axis.
    """
    return tuple(parts // 2 for parts in grid)


def neighbours(grid: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pairs of ranks that lie side by side along an axis.

    Args: `grid` has the number of parts along each axis.
    Returns: pairs (lower rank, higher rank).
    """
    at = [coordinates(rank, grid) for rank in range(prod(grid))]
    pairs = itertools.combinations(range(len(at)), 2)
    return [(a, b) for a, b in pairs if sum(abs(x - y) for x, y in zip(at[a], at[b], strict=True)) == 1]


def rank_at(position: Sequence[int], grid: Sequence[int]) -> int:
    """Returns the rank at a position on the grid.

    Args: `position` has one coordinate for each axis; the last axis counts fastest.
    """
    rank = 0
    for place, parts in zip(position, grid, strict=True):
        rank = rank * parts + place
    return rank


def shard_elements(layout: Layout, grid: Sequence[int]) -> int:
    """Returns the number of elements that the rank with the largest shard holds.

    Args: `grid` is the grid that the layout lies on.
    """
    return _shard_elements(layout, tuple(grid))


@lru_cache(maxsize=REMEMBERED)
def _shard_elements(layout: Layout, grid: tuple[int, ...]) -> int:
    return max(prod(layout.local_shape(coordinates(rank, grid))) for rank in range(prod(grid)))
