"""Blends overlapping patches with bump weights that sum to one, for models that need all of space at once.

The patches of an axis stand every patch minus overlap, the last shifted back to end with the volume. Each weight is a
product over the axes of a bump, divided by the sum of the bumps there. So all weights at a place sum to one, and no
sum is kept while patches come. A box of the output adds up its own patches in their order: its numbers do not depend
on who computes which box, and no two boxes add into each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.errors import BadInput
from planner.spatial import Box

Reader = Callable[[Box], tuple[Tensor, int]]


@dataclass(frozen=True)
class Blend:
    """The patches over a volume."""

    space: tuple[int, ...]
    asked: tuple[int, ...]  # rows of a patch
    overlap: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuses overlaps beyond half a patch.

        Raises: BadInput where patches do not fit the volume's axes.
        """
        for given, name in ((self.asked, "--patch"), (self.overlap, "--overlap")):
            if len(given) != len(self.space):
                said = f"{len(given)} numbers for {len(self.space)} axes of space"
                raise BadInput(said, where=name, allowed="one number for each axis")
        for rows, overlap in zip(self.asked, self.overlap, strict=True):
            if rows < 1 or not 0 <= 2 * overlap <= rows:
                raise BadInput(
                    f"an overlap of {overlap} rows of a patch of {rows}",
                    where="--overlap",
                    allowed="0 to half of the patch",
                )

    @property
    def patch(self) -> tuple[int, ...]:
        """Returns the rows of a patch along each axis, at most the volume's."""
        return tuple(map(min, self.asked, self.space))

    def starts(self, axis: int) -> list[int]:
        """Returns the first row of each patch along an axis, in order."""
        size, patch = self.space[axis], self.patch[axis]
        step = max(1, self.asked[axis] - self.overlap[axis])
        return [*range(0, size - patch, step), size - patch]

    @cached_property
    def weights(self) -> list[list[NDArray[np.float64]]]:
        """Returns the weights of each patch along each axis, by its place in `starts`."""
        found = []
        for axis, size in enumerate(self.space):
            bump, total = _bump(self.patch[axis]), np.zeros(size)
            starts = self.starts(axis)
            for first in starts:
                total[first : first + len(bump)] += bump
            found.append([bump / total[first : first + len(bump)] for first in starts])
        return found

    def patches(self, box: Box) -> Iterator[tuple[tuple[int, ...], Box]]:
        """Yields the patches that a box of the output takes, in order.

        Yields: the patch's place in `starts` of each axis, and its rows.
        """
        along = []
        for axis, (low, high) in enumerate(box):
            starts, rows = self.starts(axis), self.patch[axis]
            along.append([(i, (a, a + rows)) for i, a in enumerate(starts) if a < high and low < a + rows])
        for found in itertools.product(*along):
            yield tuple(i for i, _ in found), tuple(rows for _, rows in found)

    def box(self, box: Box, read: Reader, run: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        """Computes a box of the output.

        Args: `read` gives the input in a box, and how many of its numbers are not finite; `run` is the model.
        Returns: the numbers, and how many of those read are not finite.
        """
        total: Tensor | None = None
        odd, kind = 0, torch.float32
        for places, rows in self.patches(box):
            x, found = read(rows)
            made = run(x)
            odd += found
            kind = made.dtype
            wide = torch.float64 if kind == torch.float64 else torch.float32
            if total is None:
                sizes = [high - low for low, high in box]
                total = torch.zeros((*made.shape[:2], *sizes), dtype=wide, device=made.device)
            inner = [(max(a, low), min(b, high)) for (a, b), (low, high) in zip(rows, box, strict=True)]
            part = within(made.to(wide), inner, rows)
            for axis, ((a, b), (c, _)) in enumerate(zip(inner, rows, strict=True)):
                weight = torch.from_numpy(self.weights[axis][places[axis]][a - c : b - c]).to(part)
                part = part * weight.view(_along(axis, part.dim()))
            within(total, inner, box).add_(part)
        assert total is not None
        return total.to(kind), odd


def within(x: Tensor, inner: Sequence[tuple[int, int]], outer: Box) -> Tensor:
    """Returns the part of a tensor that lies in an inner box, as a view.

    Args: `x` has the rows of the box `outer` along its last dimensions.
    """
    first = x.dim() - len(outer)
    for i, ((low, high), (start, _)) in enumerate(zip(inner, outer, strict=True)):
        x = x.narrow(first + i, low - start, high - low)
    return x


def _along(axis: int, ndim: int) -> list[int]:
    return [-1 if dim == axis + 2 else 1 for dim in range(ndim)]


def _bump(rows: int) -> NDArray[np.float64]:
    """Returns positive weights that fall towards both ends."""
    at = (np.arange(rows) + 0.5) / rows * 2 - 1
    found: NDArray[np.float64] = np.exp(-1 / np.clip(1 - at * at, 1e-3, None) + 1)
    return np.maximum(found, 1e-3)


def default_overlap(patch: Sequence[int]) -> tuple[int, ...]:
    """Returns a quarter of each axis of a patch, which libraries of medical imaging take."""
    return tuple(n // 4 for n in patch)
