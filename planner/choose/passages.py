"""What bringing a tensor from one layout to another takes, looked up by form instead of by size."""

from __future__ import annotations

from math import lcm, prod

from planner.choose.machine import MeshOnCluster
from planner.layout import DimCut, GroupLayout, parted, path, without_owed


class Passages:
    """Nanoseconds of conversions on one mesh; those of tensors of one form share their shortest path."""

    def __init__(self, on: MeshOnCluster, element_bytes: int) -> None:
        self.on, self.element_bytes = on, element_bytes
        self._ns: dict[tuple[GroupLayout, GroupLayout, bool], float] = {}
        self._steps: dict[tuple[GroupLayout, GroupLayout, bool], list[tuple[str, int, float]]] = {}

    def ns(self, source: GroupLayout, target: GroupLayout, trained: bool) -> float:
        """Returns the nanoseconds of a conversion, forward and backward where the tensor is trained."""
        if source == target:
            return 0.0
        key = source, target, trained
        if key not in self._ns:
            size = prod(source.shape) * self.element_bytes
            self._ns[key] = sum(
                self.on.ns(kind, (axis,), size * share)  # type: ignore[arg-type]
                for kind, axis, share in self._collectives(*key)
            )
        return self._ns[key]

    def _collectives(
        self, source: GroupLayout, target: GroupLayout, trained: bool
    ) -> list[tuple[str, int, float]]:
        """Returns each collective of a conversion with its axis and its share of the whole tensor."""
        form = _form(source, target, self.on.mesh)
        key = (*form, trained)
        if key not in self._steps:
            found = []
            for step in path(*form, self.on.mesh, trained=trained):
                others = [
                    a for cut in step.source.cuts if cut is not None for a in cut.axes if a != step.axis
                ]
                share = 1 / prod(self.on.mesh[a] for a in others)
                ways = (step.forward, step.backward) if trained else (step.forward,)
                found += [(way, step.axis, share) for way in ways]
            self._steps[key] = found
        return self._steps[key]


def _form(a: GroupLayout, b: GroupLayout, mesh: tuple[int, ...]) -> tuple[GroupLayout, GroupLayout]:
    """Returns two layouts of a tensor as they are of one with the least dimensions that can be cut so.

    Layouts whose parts are not even stay as they are.
    """
    ranks = prod(mesh)
    blocks = [
        lcm(*(cut.blocks for cut in (a.cuts[i], b.cuts[i]) if cut is not None)) for i in range(len(a.shape))
    ]
    small = tuple(ranks * n for n in blocks)
    found = []
    for layout in (a, b):
        cuts: list[DimCut | None] = []
        for cut, size in zip(layout.cuts, small, strict=True):
            if cut is None:
                cuts.append(None)
                continue
            parts = len(cut.points) - 1
            points = parted(size // cut.blocks, parts)
            if cut.points != parted(cut.points[-1], parts) or points is None:
                return a, b
            cuts.append(DimCut(cut.axes, points, cut.blocks))
        found.append(GroupLayout(small, tuple(cuts), layout.partial, layout.owed))
    return found[0], found[1]


__all__ = ["Passages", "without_owed"]
