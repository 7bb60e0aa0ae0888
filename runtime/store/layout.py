"""Says where samples lie: those of a node's own part, and those of a window that come from other nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from runtime.store.exchange import Pieces, rounds_of
from runtime.store.routes import SampleRoutes


class Routed(NamedTuple):
    """The exchange of one window, as one node sees it."""

    sends: list[Pieces]  # of its own part, by node
    receives: list[Pieces]  # of the window, by node
    rounds: int  # that this takes everywhere
    samples: int  # that come


class SamplePlaces:
    """The places of samples in the memory of one node, and what it exchanges for a window of steps."""

    def __init__(self, routes: SampleRoutes, node: int, sizes: IntArray, start: int, steps: int) -> None:
        """Takes the bytes of every sample, the position at which the run starts, and the steps of a window."""
        self.routes, self.node, self.sizes, self.start, self.steps = routes, node, sizes, start, steps
        self._place = routes.nodes.index(node)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._bounds = routes.bounds
        self._windows: dict[int, tuple[IntArray, IntArray]] = {}  # samples from others, and where each begins

    @property
    def own(self) -> range:
        """Returns the samples of this node's part."""
        return range(int(self._bounds[self._place]), int(self._bounds[self._place + 1]))

    def window_of(self, position: int) -> int:
        """Returns the number of the window that a position of the stream lies in."""
        return (position - self.start) // (self.steps * self.routes.step_samples)

    def start_of(self, window: int) -> int:
        """Returns the position of the stream at which a window begins."""
        return self.start + window * self.steps * self.routes.step_samples

    def needed(self, window: int) -> list[IntArray]:
        """Returns the samples that each node needs for a window."""
        return self.routes.needed(self.start_of(window), self.steps)

    def in_part(self, index: int) -> slice:
        """Returns the place of a sample in this node's part.

        Args: `index` is one of `own`.
        """
        first = int(self._starts[self.own.start])
        return slice(int(self._starts[index]) - first, int(self._starts[index + 1]) - first)

    def in_window(self, window: int, index: int) -> slice:
        """Returns the place of another node's sample in a window.

        Args: `index` is a sample that this node needs for `window`.
        """
        if window not in self._windows:
            self._windows = {k: x for k, x in self._windows.items() if k >= window - 1}
            self._windows[window] = self._placed(self.needed(window)[self._place])
        indices, starts = self._windows[window]
        at = int(np.searchsorted(indices, index))
        assert at < len(indices) and indices[at] == index, f"sample {index} is not in window {window}"
        return slice(int(starts[at]), int(starts[at]) + int(self.sizes[index]))

    def _placed(self, needed: IntArray) -> tuple[IntArray, IntArray]:
        others = needed[(needed < self.own.start) | (needed >= self.own.stop)]
        ends = np.cumsum(self.sizes[others])
        return others, ends - self.sizes[others]

    def routed(self, window: int) -> Routed:
        """Returns what this node exchanges for a window.

        Args: `window` counts from the step at which the run starts.
        """
        needed, first = self.needed(window), int(self._starts[self.own.start])
        owned = [self._owned(each) for each in needed]  # [who needs][owner]
        table = [
            [int(self.sizes[each[x]].sum()) * (owner != node) for owner, x in enumerate(row)]
            for node, (each, row) in enumerate(zip(needed, owned, strict=True))
        ]
        mine = [
            each[row[self._place] if node != self._place else slice(0)]
            for node, (each, row) in enumerate(zip(needed, owned, strict=True))
        ]
        sends = [Pieces.of(self._starts[x] - first, self.sizes[x]) for x in mine]
        others, starts = self._placed(needed[self._place])
        receives = [Pieces.of(starts[x], self.sizes[others[x]]) for x in self._owned(others)]
        return Routed(sends, receives, rounds_of(table), len(others))

    def _owned(self, indices: IntArray) -> list[slice]:
        """Returns where the samples of each owner stand among sorted indices."""
        return [slice(a, b) for a, b in pairwise(np.searchsorted(indices, self._bounds).tolist())]
