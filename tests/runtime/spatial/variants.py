"""How a case is cut: over how many ranks, in one or two dimensions, into even, uneven or odd parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from planner.spatial import Cut, Layout
from runtime.spatial.analyse import Analysed
from tests.runtime.spatial.cases import CASES, Case
from tests.runtime.spatial.equality import Reference, analysed, reference

SIZES = {"even": (16, 12, 8), "uneven": (16, 12, 8), "odd": (13, 11, 9)}
GRIDS = ((2,), (3,), (4,), (2, 2))
UNEVEN = {2: (0.3,), 3: (0.1, 0.6), 4: (0.1, 0.4, 0.5)}  # where the parts end; some are one row


@dataclass(frozen=True)
class Variant:
    case: Case
    parts: str
    grid: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.case.name}, {self.parts} over {'x'.join(map(str, self.grid))}"

    def reference(self) -> Reference:
        torch.manual_seed(1)
        return reference(self.case.build(), *self.case.shapes(SIZES[self.parts]))

    def analysed(self, ref: Reference) -> Analysed:
        if self.parts != "uneven":
            return analysed(ref, self.grid)
        layouts = {name: uneven(tuple(x.shape), self.grid) for name, x in ref.inputs.items() if x.dim() > 2}
        return analysed(ref, self.grid, layouts)


def variants(names: Sequence[str] = tuple(CASES)) -> Iterator[Variant]:
    for name in names:
        for parts in SIZES:
            for grid in GRIDS:
                if len(grid) <= CASES[name].dims:
                    yield Variant(CASES[name], parts, grid)


def uneven(shape: tuple[int, ...], grid: Sequence[int]) -> Layout:
    cuts: list[Cut | None] = [None] * len(shape)
    for axis, parts in enumerate(grid):
        size = shape[2 + axis]
        inner = (max(i + 1, int(at * size)) for i, at in enumerate(UNEVEN[parts]))
        cuts[2 + axis] = Cut(axis, (0, *inner, size))
    return Layout(shape, tuple(cuts))
