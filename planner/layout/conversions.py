"""Brings a tensor from one layout to another: the shortest path of steps along single axes, and what each sends.

What a step does to the tensor depends on how its values lie before and after: in parts (S), whole (W) or as addends
(P). Backward, the gradient takes the same step between the dual layouts. All conversions follow from this table:

    S to W   all-gather       (t-1)/t n        W to S   its own rows      0
    P to W   all-reduce       2(t-1)/t n       W to P   the first alone   0
    P to S   reduce-scatter   (t-1)/t n        S to P   zeros around it   0
    S to S   all-to-all       (t-1)/t^2 n      else     nothing           0
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, Literal

from planner.layout.lying import DUAL, GroupLayout, Kind, Mesh

Collective = Literal["gather", "own", "reduce", "first", "scatter", "pad", "exchange", "none"]
_STEPS: Final[dict[tuple[str, str], Collective]] = {
    ("S", "W"): "gather",
    ("W", "S"): "own",
    ("P", "W"): "reduce",
    ("W", "P"): "first",
    ("P", "S"): "scatter",
    ("S", "P"): "pad",
}
_VALUES: Final[dict[Kind, str]] = {"S": "S", "I": "W", "R": "W", "P": "P"}


@dataclass(frozen=True, slots=True)
class Passage:
    """One step of a conversion: two layouts that differ along one axis alone."""

    axis: int
    source: GroupLayout
    target: GroupLayout

    @property
    def forward(self) -> Collective:
        """Returns what is done to the tensor."""
        return _collective(self.source, self.target, self.axis)

    @property
    def backward(self) -> Collective:
        """Returns what is done to its gradient."""
        return _collective(self.target.dual(), self.source.dual(), self.axis)

    def sent(self, mesh: Mesh, *, trained: bool) -> tuple[float, float]:
        """Returns the elements that a rank sends, forward and backward.

        Args: `trained` says whether the tensor has a gradient.
        """
        others = [axis for cut in self.source.cuts if cut is not None for axis in cut.axes]
        n = prod(self.source.shape) / prod(mesh[axis] for axis in others if axis != self.axis)
        back = sent(self.backward, n, mesh[self.axis]) if trained else 0.0
        return sent(self.forward, n, mesh[self.axis]), back


def sent(collective: Collective, elements: float, ranks: int) -> float:
    """Returns the elements that a rank sends in a collective.

    Args: `elements` are of the tensor as it is whole along the axis, which has `ranks` ranks.
    """
    share = elements * (ranks - 1) / ranks
    return {"gather": share, "scatter": share, "reduce": 2 * share, "exchange": share / ranks}.get(
        collective, 0.0
    )


def cost(source: tuple[Kind, int | None], target: tuple[Kind, int | None], trained: bool) -> float:
    """Returns what a step sends both ways, as a share of the whole tensor, for many ranks.

    Args: each kind comes with the dimension that is cut, where it is S.
    """
    if source == target:
        return 0.0
    forward, back = (source[0], target[0]), (DUAL[target[0]], DUAL[source[0]])
    return sum(_share(*way) for way in ((forward, back) if trained else (forward,)))


def _share(source: Kind, target: Kind) -> float:
    if source == target:
        return 0.25 if source == "S" else 0.0
    step = _STEPS.get((_VALUES[source], _VALUES[target]), "none")
    return {"gather": 1.0, "scatter": 1.0, "reduce": 2.0}.get(step, 0.0)


def _collective(source: GroupLayout, target: GroupLayout, axis: int) -> Collective:
    before, after = _VALUES[source.kind(axis)], _VALUES[target.kind(axis)]
    if before == after == "S":
        return "exchange" if source.dim(axis) != target.dim(axis) else "none"
    return _STEPS.get((before, after), "none")


@lru_cache(maxsize=65536)
def path(source: GroupLayout, target: GroupLayout, mesh: Mesh, *, trained: bool) -> tuple[Passage, ...]:
    """Returns the steps from one layout to another that send least.

    Args: `trained` says whether the tensor has a gradient.
    Returns: no steps where nothing is to be done.
    """
    count = itertools.count()
    queue: list[tuple[float, int, GroupLayout, tuple[Passage, ...]]] = [(0.0, 0, source, ())]
    done: set[GroupLayout] = set()
    while queue:
        spent, _, layout, steps = heapq.heappop(queue)
        if layout == target:
            return steps
        if layout in done:
            continue
        done.add(layout)
        for step in _next(layout, target, mesh):
            price = sum(step.sent(mesh, trained=trained)) + 1e-3  # of equal paths the one with fewer steps
            heapq.heappush(queue, (spent + price, next(count), step.target, (*steps, step)))
    raise AssertionError((source, target))


def _next(layout: GroupLayout, target: GroupLayout, mesh: Mesh) -> Iterator[Passage]:
    for axis in range(len(mesh)):
        for kind in ("I", "R", "P"):
            found = layout.whole_along(axis, kind, mesh)
            if found is None:
                continue
            if found != layout and (kind != "P" or target.kind(axis) == "P"):
                yield Passage(axis, layout, found)
            if kind == "I" and layout.dim(axis) != target.dim(axis):
                cut = _cut_next(found, target, axis, mesh)
                if cut is not None:
                    yield Passage(axis, layout, cut)


def _cut_next(layout: GroupLayout, target: GroupLayout, axis: int, mesh: Mesh) -> GroupLayout | None:
    """Returns a layout cut further along an axis, as the target is; None where outer axes are to be cut first."""
    dim = target.dim(axis)
    if dim is None:
        return None
    wanted, own = target.cuts[dim], layout.cuts[dim]
    assert wanted is not None
    place = wanted.axes.index(axis)
    if wanted.outer(place, mesh) != own:
        return None
    return layout.with_dim(dim, wanted.outer(place + 1, mesh))
