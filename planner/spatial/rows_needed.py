"""Says which rows of a tensor each rank needs, whose rows they are, and what it costs to get them.

A Fetch is along one dimension. It stands for halos, padding of every kind, flips, slices, rolls, gathers and
re-cuts. In each of them a coordinate lists the global rows that it wants, as runs of constant step. Rows in no run
are fill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from planner.spatial.layout import REMEMBERED, Cut, Layout, coordinates


class RowRun(NamedTuple):
    """A run of rows at a constant step, as one rank wants them."""

    at: int  # position of the first row in what the rank gets
    start: int  # global row
    length: int
    step: int  # 0 repeats a row, negative runs backwards

    def part(self, low: int, high: int) -> RowRun | None:
        """Returns the part of the run whose rows lie in [low, high).

        Returns: None where no row of the run does.
        """
        if self.step == 0:
            return self if low <= self.start < high else None
        if self.step > 0:
            first = max(0, -((self.start - low) // self.step))
            last = min(self.length, -((self.start - high) // self.step))
        else:
            first = max(0, -((high - 1 - self.start) // -self.step))
            last = min(self.length, (self.start - low) // -self.step + 1)
        if first >= last:
            return None
        return RowRun(self.at + first, self.start + first * self.step, last - first, self.step)

    @property
    def rows(self) -> int:
        """Returns the number of rows that must travel."""
        return 1 if self.step == 0 else self.length


@dataclass(frozen=True, slots=True)
class Fetch:
    """The rows of one dimension that each coordinate along an axis of the grid wants, and where they come from."""

    dim: int
    axis: int
    points: tuple[int, ...] | None  # how the source is cut; None: every rank holds all of it
    size: int  # rows of the source
    runs: tuple[tuple[RowRun, ...], ...]  # what each coordinate wants
    sizes: tuple[int, ...]  # rows that each coordinate ends with, fill included
    fill: float = 0.0
    shared: bool = False  # every coordinate ends with the same rows: the result is whole along the axis

    @property
    def trivial(self) -> bool:
        """Returns whether every coordinate keeps exactly what it has."""
        if self.points is None or self.shared:
            return False
        own = zip(self.points, self.points[1:], strict=False)
        return all(
            runs == (RowRun(0, a, b - a, 1),) and size == b - a
            for runs, size, (a, b) in zip(self.runs, self.sizes, own, strict=True)
        )

    def pieces(self, receiver: int, sender: int) -> tuple[RowRun, ...]:
        """Returns the runs that one coordinate takes from the rows of another.

        Args: `receiver` and `sender` are coordinates along the axis of the fetch.
        """
        if self.points is None:
            return self.runs[receiver] if sender == receiver else ()
        low, high = self.points[sender], self.points[sender + 1]
        parts = (run.part(low, high) for run in self.runs[receiver])
        return tuple(part for part in parts if part is not None)

    def messages(self) -> tuple[tuple[int, int, int], ...]:
        """Returns everything that travels.

        Returns: (sender, receiver, rows), sender and receiver as coordinates along the axis.
        """
        return _messages(self)


def intervals(
    dim: int,
    cut: Cut,
    needs: Sequence[tuple[int, int]],
    fill: float = 0.0,
    reads: Sequence[tuple[int, int]] = (),
) -> Fetch:
    """Returns the fetch of one interval of rows for each coordinate.

    Args: `needs` has rows [low, high) for each coordinate; rows outside the tensor are filled with `fill`, and those
        outside `reads`, if given, which has rows of the tensor.
    """
    runs, sizes = [], []
    for (low, high), (first, last) in zip(needs, reads or [(0, cut.size)] * len(needs), strict=True):
        a, b = max(low, first), min(high, last)
        runs.append((RowRun(a - low, a, b - a, 1),) if a < b else ())
        sizes.append(max(0, high - low))
    return Fetch(dim, cut.axis, cut.points, cut.size, tuple(runs), tuple(sizes), fill)


def listed(dim: int, cut: Cut, rows: Sequence[Sequence[int]], fill: float = 0.0) -> Fetch:
    """Returns the fetch of any rows in any order for each coordinate.

    Args: `rows` has the global rows of each coordinate; -1 stands for a row of `fill`.
    """
    runs = tuple(tuple(_runs(wanted)) for wanted in rows)
    return Fetch(dim, cut.axis, cut.points, cut.size, runs, tuple(map(len, rows)), fill)


def gather(dim: int, cut: Cut, low: int = 0, high: int | None = None) -> Fetch:
    """Returns the fetch of the same rows for every coordinate.

    Args: `low` and `high` bound the rows [low, high); all rows where they are not given.
    """
    high = cut.size if high is None else high
    parts = len(cut.points) - 1
    run = (RowRun(0, low, high - low, 1),)
    return Fetch(dim, cut.axis, cut.points, cut.size, (run,) * parts, (high - low,) * parts, shared=True)


def gathered(layout: Layout) -> tuple[Fetch, ...]:
    """Returns the fetches that make a tensor whole on every rank.

    Returns: one fetch for each dimension that is cut.
    """
    cuts = ((dim, layout.cuts[dim]) for dim in layout.cut_dims)
    return tuple(gather(dim, cut) for dim, cut in cuts if cut is not None)


def take(dim: int, target: Cut) -> Fetch:
    """Returns the fetch of a cut's rows from a tensor that every rank holds whole.

    Returns: a fetch for which nothing travels.
    """
    own = list(zip(target.points, target.points[1:], strict=False))
    runs = tuple((RowRun(0, a, b - a, 1),) for a, b in own)
    return Fetch(dim, target.axis, None, target.size, runs, tuple(b - a for a, b in own))


def recut(dim: int, source: Cut, target: Cut) -> Fetch:
    """Returns the fetch that brings a dimension from one cut to another.

    Args: `source` and `target` cut the same dimension along the same axis.
    """
    return intervals(dim, source, list(zip(target.points, target.points[1:], strict=False)))


@lru_cache(maxsize=REMEMBERED)
def _messages(fetch: Fetch) -> tuple[tuple[int, int, int], ...]:
    count, found = len(fetch.runs), []
    for receiver in range(count):
        for sender in range(count):
            rows = sum(run.rows for run in fetch.pieces(receiver, sender))
            if sender != receiver and rows:
                found.append((sender, receiver, rows))
    return tuple(found)


def sent_elements(layout: Layout, fetches: Sequence[Fetch], grid: Sequence[int]) -> int:
    """Returns the number of elements that the busiest rank sends for all fetches of one tensor.

    Args: `fetches` are done in their order; later ones carry the corners that earlier ones brought.
    """
    return _sent_elements(layout, tuple(fetches), tuple(grid))


@lru_cache(maxsize=REMEMBERED)
def _sent_elements(layout: Layout, fetches: tuple[Fetch, ...], grid: tuple[int, ...]) -> int:
    sent = [0] * prod(grid)
    sizes: dict[int, Sequence[int]] = {}
    for fetch in fetches:
        by_place: dict[int, int] = defaultdict(int)
        for sender, _, rows in fetch.messages():
            by_place[sender] += rows
        for rank in range(len(sent)):
            place = coordinates(rank, grid)
            local = list(layout.local_shape(place))
            for dim, rows_of in sizes.items():
                axis = next(each.axis for each in fetches if each.dim == dim)
                local[dim] = rows_of[place[axis]]
            local[fetch.dim] = by_place[place[fetch.axis]]
            sent[rank] += prod(local)
        sizes[fetch.dim] = fetch.sizes
    return max(sent)


def _runs(rows: Sequence[int]) -> Iterator[RowRun]:
    position = 0
    while position < len(rows):
        start = rows[position]
        if start < 0:
            position += 1
            continue
        count, step = 1, 0
        if position + 1 < len(rows) and rows[position + 1] >= 0:
            step = rows[position + 1] - start
            while position + count < len(rows) and rows[position + count] == start + count * step >= 0:
                count += 1
        yield RowRun(position, start, count, step if count > 1 else 1)
        position += count
