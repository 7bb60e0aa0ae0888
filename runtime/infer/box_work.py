"""Predicts the work and the memory of a box of the output from the operations' results, each with its own margins."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np
import torch
from numpy.typing import NDArray

from planner.spatial import Box, Layout, alignment, local_shape
from runtime.infer.model import Applied
from runtime.infer.sweep import sweep

PROBED = 32  # rows of the box that tells margins
TRAFFIC = 8  # floating-point operations that a number costs that is only read and written


class Work:
    """The work and memory of a box by its rows, summed over the operations of a model."""

    def __init__(self, applied: Applied) -> None:
        reach = self.reach = applied.reach
        self._kept: dict[int, NDArray[np.float64]] = {}
        self.space, self.alignment = (
            reach.output_space,
            tuple(min(a, n) for a, n in zip(alignment(reach), reach.output_space, strict=True)),
        )
        self.probed = tuple(map(_probed, self.space, self.alignment))
        self.need = reach.of(self.middle(self.probed))
        forward, flops = applied.forward, applied.forward.captured.layout.probes[0].flops
        made = [
            (done, layout) for done in self.need.placed for layout in self.need.layouts[done.operation.name]
        ]
        inner = [(done, layout) for done, layout in made if not layout.whole]
        axes = reach.axes
        self._names = [done.operation.name for done, _ in inner]
        self.first = np.array([[_rows(layout, axis)[0] for axis in axes] for _, layout in inner], float)
        self.whole = np.array([[_rows(layout, axis)[1] for axis in axes] for _, layout in inner], float)
        self.other = np.array([prod(layout.shape) for _, layout in inner], float) / self.whole.prod(1)
        self.flops = np.array([flops.get(forward.nodes[d.operation.name], 0) for d, _ in inner], float)
        self.item = torch.empty(0, dtype=applied.dtype).element_size()
        self.alive = _alive([d.operation.name for d, _ in inner], [d.operation.reads() for d, _ in inner])

    def middle(self, rows: Sequence[int]) -> Box:
        """Returns an aligned box of so many rows in the middle of the output."""
        starts = ((n - m) // 2 // a * a for n, m, a in zip(self.space, rows, self.alignment, strict=True))
        return tuple((first, first + m) for first, m in zip(starts, rows, strict=True))

    def _elements(self, rows: Sequence[float]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.other * self._grown(rows).prod(1)
        return found

    def _grown(self, rows: Sequence[float]) -> NDArray[np.float64]:
        """Returns the rows of each operation's result along each axis, with its own margins."""
        rate = self.whole / np.array(self.space, float)
        grown = np.minimum(self.first + rate * (np.array(rows, float) - np.array(self.probed)), self.whole)
        found: NDArray[np.float64] = np.where(
            np.array(rows) >= np.array(self.space), self.whole, np.maximum(grown, 1)
        )
        return found

    def of(self, rows: Sequence[float], sweep: Sequence[int] = ()) -> tuple[float, float]:
        """Returns the work of a box in floating-point operations, and the bytes that it holds at once.

        Args: `sweep` has the axis that is gone along, and the rows of a pass.
        """
        elements = self._elements(rows)
        share = elements / (self.other * self.whole.prod(1))
        work = float((self.flops * share).sum() + TRAFFIC * elements.sum())
        if not sweep:
            return work, float((self.alive @ elements).max() * self.item)
        place, step = sweep
        at_once = self.whole[:, place] * step / self.space[place]
        grown = np.maximum(elements / self._grown(rows)[:, place], 1)  # of one row along the axis
        kept = np.minimum(self.kept(place), self.whole[:, place]) * grown
        passes = ceil(rows[place] / step)
        work += 2 * TRAFFIC * float(kept.sum()) * passes
        made = at_once * grown
        held = kept.sum() + self.alive @ made + made + self.result(rows)
        return work, float(held.max() * self.item)

    def result(self, rows: Sequence[float]) -> float:
        """Returns how many numbers of the output a box has."""
        at = self._names.index(self.reach.result)
        return float(self._elements(rows)[at])

    def kept(self, place: int) -> NDArray[np.float64]:
        """Returns the rows of each operation's result that a sweep along an axis keeps between passes."""
        if place not in self._kept:
            box = list(self.middle(self.probed))
            box[place] = (0, self.space[place])
            made = sweep(self.reach, tuple(box), place, self.alignment[place])
            has = [name if made.axis in made.rows.get(name, {}) else "" for name in self._names]
            self._kept[place] = np.array([made.kept(name) if name else 0 for name in has], float)
        return self._kept[place]

    def total(self, chunk: Sequence[int], sweep: Sequence[int] = ()) -> tuple[float, int]:
        """Returns the work of all tasks of a chunk, and their number."""
        counts = [ceil(n / c) for n, c in zip(self.space, chunk, strict=True)]
        mean = [n / count for n, count in zip(self.space, counts, strict=True)]
        return prod(counts) * self.of(mean, sweep)[0], prod(counts)

    @property
    def margin(self) -> tuple[tuple[int, int], ...]:
        """Returns the rows of the input before and behind those in proportion to a box in the middle."""
        found = []
        rows = zip(self.need.input, self.need.output, self.space, self.reach.input_shape[2:], strict=False)
        for (low, high), (first, last), made, size in rows:
            found.append((max(0, first * size // made - low), max(0, high - -(-last * size // made))))
        return tuple(found)


def _probed(size: int, alignment: int) -> int:
    """Returns the rows of a box that has borders of its own where the volume is large enough for them."""
    return min(
        size, max(alignment, min(alignment * ceil(PROBED / alignment), size // 2 // alignment * alignment))
    )


def _rows(layout: Layout, axis: int) -> tuple[int, int]:
    """Returns the rows of a box and of the whole tensor along an axis; ones where the tensor does not have it."""
    for dim, cut in enumerate(layout.cuts):
        if cut is not None and cut.axis == axis:
            return local_shape(layout)[dim], layout.shape[dim]
    return 1, 1


def _alive(names: Sequence[str], reads: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Returns, for each operation, which results are held while it runs, its own among them."""
    last = {name: i for i, row in enumerate(reads) for name in row}
    found = np.zeros((len(names), len(names)))
    for i, name in enumerate(names):
        found[i : last.get(name, len(names) - 1) + 1, i] = 1
    return found
