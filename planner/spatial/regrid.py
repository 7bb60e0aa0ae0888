"""Re-splits tensors from one grid of ranks to another: which part of a tensor each rank sends to each other rank.

All ranks exchange at once (all-to-all). Every rank sends what its old shard shares with the new shards of others;
what it has itself stays. The gradient goes the same way back. Where several ranks hold a shard alike, each has the
whole gradient of the shard, so nothing is summed. Shares of the samples are one more way that a tensor may lie.

Behind an operation without a rule tensors are whole. The next operation that slides over space cuts them again, since
it takes most of the time of a network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from planner.model import ModelGraph
from planner.spatial.layout import REMEMBERED, Cut, Layout, coordinates, entry, even, shard_elements, whole
from planner.spatial.operation import NONE, Operation
from planner.spatial.rule import NoRule, call_of
from planner.spatial.rules import reductions, resample, windows
from planner.spatial.rules.table import rule

Grid = tuple[int, ...]
SLIDING: Final = frozenset((*windows.WINDOWS, *resample.RESAMPLES, *reductions.SPATIAL_NORMS))
SPACE = 2  # dimensions in front of those of space: samples and channels


def mesh_of(grid: Grid, ranks: int) -> Grid:
    """Returns a grid over all ranks of a group.

    Args: `ranks` is a multiple of the cells of `grid`.
    Returns: `grid` itself, or with a last axis of ranks that compute the same cell alike where there are fewer cells.
    """
    return grid if prod(grid) == ranks else (*grid, ranks // prod(grid))


@dataclass(frozen=True, slots=True)
class Grids:
    """The grids that the ranks of one sample compute on, layer by layer, and the grids on which given tensors lie."""

    ranks: int
    first: Grid
    turns: Mapping[str, Grid] = field(default_factory=dict)
    lying: Mapping[str, Grid] = field(default_factory=dict)  # by name, of all ranks; others lie on the first
    shares: str = ""  # the layer from which on each rank has whole samples of its own, if any
    samples: Mapping[str, int] = field(
        default_factory=dict
    )  # by name of what is given, the dim of its samples
    turners: Mapping[str, Operation] = field(default_factory=dict)  # of what is given, as of a segment
    around: Collection[str] = ()  # of what is given, as of a segment

    @property
    def mesh(self) -> Grid:
        """Returns the first grid, extended to all ranks."""
        return mesh_of(self.first, self.ranks)


ALONE: Final = Grids(1, ())


class Piece(NamedTuple):
    """The part of a tensor that one rank gives to another.

    `rows` are global rows [low, high) of each dimension that is cut before or after.
    """

    sender: int
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Resplit:
    """The move of one tensor from a layout on one grid to a layout on another."""

    source: Layout
    before: Grid  # of all ranks, see `mesh_of`
    target: Layout
    after: Grid
    samples: int = NONE  # the dimension of samples, where those are shared before or after

    @property
    def back(self) -> Resplit:
        """Returns the move in the other direction, which the gradient takes."""
        return Resplit(self.target, self.after, self.source, self.before, self.samples)

    @property
    def shared(self) -> bool:
        """Returns whether ranks share the samples before or after the move."""
        return self.samples != NONE

    def of(self, rows: int) -> Resplit:
        """Returns the move of the same tensor with another number of samples.

        Args: `rows` is the size of the dimension of samples; the plan was made with an example of another size.
        """
        return self if rows == self.source.shape[self.samples] else _of(self, rows)

    @property
    def dims(self) -> tuple[int, ...]:
        """Returns the dimensions that are cut before or after, in ascending order."""
        return tuple(sorted({*self.source.cut_dims, *self.target.cut_dims}))

    def held(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Returns the rows that a rank holds before the move.

        Returns: global rows (start, stop) for each dimension in `dims`.
        """
        region = self.source.region(coordinates(rank, self.before))
        return tuple(region[dim] for dim in self.dims)

    def wanted(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Returns the rows that a rank holds after the move.

        Returns: global rows (start, stop) for each dimension in `dims`.
        """
        return self.back.held(rank)

    def pieces(self, receiver: int) -> Iterator[Piece]:
        """Yields the pieces that a rank puts its new shard together from.

        Yields: one piece for each distinct old shard; its sender is the receiver itself where it holds these rows.
        """
        wanted = self.wanted(receiver)
        holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank in range(prod(self.before)):
            holders.setdefault(self.held(rank), []).append(rank)
        for held, ranks in holders.items():
            rows = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True))
            if all(low < high for low, high in rows):
                yield Piece(receiver if receiver in ranks else ranks[receiver % len(ranks)], rows)

    def sent_elements(self) -> int:
        """Returns the number of elements that the busiest rank sends."""
        return _sent_elements(self)

    def made_elements(self) -> int:
        """Returns the number of elements of the largest new shard."""
        return shard_elements(self.target, self.after)


@lru_cache(maxsize=REMEMBERED)
def _sent_elements(move: Resplit) -> int:
    sent = [0] * prod(move.before)
    others = prod(n for dim, n in enumerate(move.source.shape) if dim not in move.dims)
    for receiver in range(len(sent)):
        for piece in move.pieces(receiver):
            if piece.sender != receiver:
                sent[piece.sender] += others * prod(high - low for low, high in piece.rows)
    return max(sent)


@lru_cache(maxsize=REMEMBERED)
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
    """Returns whether the dimensions of a layout are in another order than samples, channels, then space.

    Args: `layout` is cut along the axis of the grid that its dimension of space has, unless it is turned.
    """
    return any(cut is not None and dim != SPACE + cut.axis for dim, cut in enumerate(layout.cuts))


def resplit(
    source: Layout, before: Grid, grid: Grid, ranks: int, reader: str, turner: Operation | None = None
) -> Resplit:
    """Returns the move of a tensor to even shards of another grid.

    Args: `source` lies on `before`; an empty `grid` makes the tensor whole; `reader` is the layer that needs the move;
        `turner` is the operation that moved space to other dimensions, if it is known.
    Raises: NoRule where it is not known which dimension is which; the error names `turner`.
    """
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


def cut_again(
    operation: Operation,
    reads: Mapping[str, Layout],
    around: Collection[str],
    lying: Mapping[str, Grid],
    grid: Grid,
    ranks: int,
) -> dict[str, Resplit]:
    """Returns the move that cuts a tensor again behind an operation without a rule, where the next one slides over it.

    Args: `around` has the tensors that were gathered for such an operation, or made of them; `grid` is the one of all
        `ranks` at the operation.
    Returns: nothing where the rule of the operation does not take the parts.
    """
    name = next(iter(operation.reads()), "")
    if operation.operation not in SLIDING or name not in around:
        return {}
    target = entry(reads[name].shape, grid)
    try:
        rule(call_of(operation, {**reads, name: target}))
    except NoRule:
        return {}
    made = Resplit(reads[name], lying[name], target, mesh_of(grid, ranks))
    return {} if target.whole else {name: made}


def slides(graph: ModelGraph) -> bool:
    """Returns whether some operation of a model slides over space, so that samples may be cut there."""
    names = [f'"operation":"{name}"' for name in SLIDING]
    return any(name in line for line in graph.operations for name in names)
