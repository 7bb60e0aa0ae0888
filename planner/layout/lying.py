"""Describes how a tensor lies along each axis of a group of ranks that work on one micro-batch together.

Along an axis a tensor is one of four kinds. `S`: its parts lie on the ranks. `I`: every rank has it whole, and its
gradient whole. `R`: every rank has it whole, and its gradient is a sum that is still owed. `P`: every rank has an
addend, and the gradient whole. So the gradient of S is S, of I is I, of R is P, and of P is R.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal, NamedTuple

Kind = Literal["S", "I", "R", "P"]
Mesh = tuple[int, ...]  # parts along each axis of the group; the last axis counts fastest
DUAL: Final[dict[Kind, Kind]] = {"S": "S", "I": "I", "R": "P", "P": "R"}


class DimCut(NamedTuple):
    """The cut of one dimension, seen as `blocks` runs of equal length, each of which is cut at the same points.

    A weight of q, k and v in one is cut by heads in three blocks. Several axes cut nested, outer to inner.
    """

    axes: tuple[int, ...]
    points: tuple[int, ...]  # of one block; the part at place p has its rows points[p] up to points[p + 1]
    blocks: int = 1

    @property
    def size(self) -> int:
        """Returns the rows of the whole dimension."""
        return self.points[-1] * self.blocks

    def place(self, position: Sequence[int], mesh: Mesh) -> int:
        """Returns which part a rank holds.

        Args: `position` has the rank's coordinate along each axis of `mesh`.
        """
        place = 0
        for axis in self.axes:
            place = place * mesh[axis] + position[axis]
        return place

    def runs(self, place: int) -> list[tuple[int, int]]:
        """Returns the rows (start, stop) of one part, one run a block.

        Args: `place` is what the method of this name returns.
        """
        low, high, length = self.points[place], self.points[place + 1], self.points[-1]
        return [(block * length + low, block * length + high) for block in range(self.blocks)]

    def length(self, place: int) -> int:
        """Returns the number of rows of one part.

        Args: `place` is what the method of this name returns.
        """
        return (self.points[place + 1] - self.points[place]) * self.blocks

    def outer(self, count: int, mesh: Mesh) -> DimCut | None:
        """Returns the cut by the first axes alone; None where it is none.

        Args: `count` is the number of axes that are kept.
        """
        step = prod(mesh[axis] for axis in self.axes[count:])
        return DimCut(self.axes[:count], self.points[::step], self.blocks) if count else None

    def inner(self, axis: int, mesh: Mesh) -> DimCut | None:
        """Returns this cut with each part cut once more; None where a part has fewer rows than the axis has ranks.

        Args: `axis` becomes the innermost.
        """
        pieces = [parted(b - a, mesh[axis]) for a, b in itertools.pairwise(self.points)]
        points = [0]
        for low, found in zip(self.points, pieces, strict=False):
            if found is None:
                return None
            points += [low + x for x in found[1:]]
        return DimCut((*self.axes, axis), tuple(points), self.blocks)


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """A tensor's global shape, the cut of each of its dimensions, and the axes along which sums are still owed."""

    shape: tuple[int, ...]
    cuts: tuple[DimCut | None, ...]  # one entry a dimension
    partial: frozenset[int] = frozenset()  # axes along which the tensor itself is an addend: kind P
    owed: frozenset[int] = frozenset()  # axes along which its gradient is an addend: kind R
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert len(self.cuts) == len(self.shape), self
        axes = [*self.partial, *self.owed]
        for dim, cut in enumerate(self.cuts):
            if cut is not None:
                assert cut.size == self.shape[dim], self
                axes += cut.axes
        assert len(axes) < 2 or len(set(axes)) == len(axes), self

    def __hash__(self) -> int:
        """Returns the hash, which is reckoned once: layouts are keys of what is known of operations."""
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.shape, self.cuts, self.partial, self.owed)) or 1)
        return self._hash

    @property
    def alike(self) -> bool:
        """Returns whether every rank holds the tensor whole, and its gradient, too."""
        return not (any(self.cuts) or self.partial or self.owed)

    def kind(self, axis: int) -> Kind:
        """Returns what the tensor is along an axis."""
        if axis in self.partial:
            return "P"
        if axis in self.owed:
            return "R"
        return "I" if self.dim(axis) is None else "S"

    def dim(self, axis: int) -> int | None:
        """Returns the dimension that an axis cuts; None where it cuts none."""
        return next((i for i, cut in enumerate(self.cuts) if cut is not None and axis in cut.axes), None)

    @property
    def cut_axes(self) -> tuple[int, ...]:
        """Returns the axes along which the tensor is cut."""
        return tuple(sorted(axis for cut in self.cuts if cut is not None for axis in cut.axes))

    def local_shape(self, position: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
        """Returns the shape of one rank's part.

        Args: `position` has the rank's coordinate along each axis of `mesh`.
        """
        return tuple(
            n if cut is None else cut.length(cut.place(position, mesh))
            for n, cut in zip(self.shape, self.cuts, strict=True)
        )

    def with_dim(self, dim: int, cut: DimCut | None) -> GroupLayout:
        """Returns this layout with another cut of one dimension.

        Args: `cut` is None where the dimension becomes whole.
        """
        cuts = (*self.cuts[:dim], cut, *self.cuts[dim + 1 :])
        return GroupLayout(self.shape, cuts, self.partial, self.owed)

    def whole_along(self, axis: int, kind: Kind, mesh: Mesh) -> GroupLayout | None:
        """Returns this layout as kind I, R or P along an axis; None where an inner axis cuts the same dimension."""
        layout, dim = self, self.dim(axis)
        if dim is not None:
            cut = self.cuts[dim]
            assert cut is not None
            if cut.axes[-1] != axis:
                return None
            layout = self.with_dim(dim, cut.outer(len(cut.axes) - 1, mesh))
        partial, owed = layout.partial - {axis}, layout.owed - {axis}
        if kind == "P":
            partial |= {axis}
        if kind == "R":
            owed |= {axis}
        return GroupLayout(layout.shape, layout.cuts, partial, owed)

    def dual(self) -> GroupLayout:
        """Returns the layout of the tensor's gradient."""
        return GroupLayout(self.shape, self.cuts, self.owed, self.partial)

    def text(self) -> str:
        """Returns the layout in one line, such as "S(1) by 0, R by 1"."""
        said = []
        for dim, cut in enumerate(self.cuts):
            if cut is not None:
                blocks = f" in {cut.blocks} blocks" if cut.blocks > 1 else ""
                said.append(f"S({dim}){blocks} by {', '.join(map(str, cut.axes))}")
        said += [f"P by {axis}" for axis in sorted(self.partial)]
        said += [f"R by {axis}" for axis in sorted(self.owed)]
        return ", ".join(said) or "I"


def everywhere(shape: Sequence[int]) -> GroupLayout:
    """Returns the layout of a tensor that every rank has whole, and its gradient, too.

    Args: `shape` is the global shape.
    """
    return GroupLayout(tuple(shape), (None,) * len(shape))


def parted(size: int, parts: int) -> tuple[int, ...] | None:
    """Returns the points that cut a dimension into parts as equal as can be; None where one would be empty."""
    return tuple(size * i // parts for i in range(parts + 1)) if 0 < parts <= size else None


def positions(mesh: Mesh) -> list[tuple[int, ...]]:
    """Returns the coordinates of every rank of a group, in the order of the ranks."""
    return list(itertools.product(*(range(parts) for parts in mesh)))


def without_owed(layout: GroupLayout) -> GroupLayout:
    """Returns the layout of a tensor without a gradient, for which nothing can be owed.

    Args: `layout` is one of a tensor that may have had a gradient.
    """
    return GroupLayout(layout.shape, layout.cuts, layout.partial) if layout.owed else layout
