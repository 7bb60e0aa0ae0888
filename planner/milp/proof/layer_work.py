"""The work of every layer for one micro-batch, and the longest ways through the layers, for bounds from totals alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import IntArray
from planner.cost import Edges, Tables
from planner.schedule import Kind


@dataclass(frozen=True, eq=False)
class LayerWork:
    """The nanoseconds of every layer for one micro-batch, [layer]."""

    forward: IntArray
    back: IntArray  # what its gradient waits for on its way to the layer before
    last: IntArray  # everything from then on: the weight half of a split backward included
    total: IntArray
    splits: bool  # a weight half may come last

    @property
    def around(self) -> IntArray:
        """Returns what must be done before each layer, and after it."""
        return self.head + self.tail

    @cached_property
    def head(self) -> IntArray:
        return np.cumsum(self.forward) - self.forward

    @cached_property
    def tail(self) -> IntArray:
        return np.zeros_like(self.back) if self.splits else np.cumsum(self.back) - self.back

    @cached_property
    def returned(self) -> IntArray:
        """Returns when a gradient reaches each layer at the earliest."""
        own: IntArray = self.forward.sum() + np.cumsum(self.back[::-1])[::-1] - self.back
        return own

    @cached_property
    def chain(self) -> int:
        return int((self.forward + self.back).sum())

    @cached_property
    def part(self) -> float:
        """Returns the least share of any layer's work that the stages after it must wait for."""
        head = self.forward if self.splits else self.forward + self.back
        busy = self.total > 0
        return float((head[busy] / self.total[busy]).min(initial=1.0))


@dataclass(frozen=True, eq=False)
class Passed:
    """The work of layers where a micro-batch may pass some of them by: the longest ways through the layers' edges."""

    work: LayerWork
    edges: Edges

    @cached_property
    def _head(self) -> list[int]:
        """Returns what must be done before each layer."""
        found, forward = [0] * len(self.work.forward), self.work.forward.tolist()
        edges = self.edges
        for late, early in sorted(zip(edges.consumer.tolist(), edges.made.tolist(), strict=True)):
            found[late] = max(found[late], found[early] + forward[early])
        return found

    @cached_property
    def _back(self) -> list[tuple[int, int]]:
        """Returns the pairs of layers between which a gradient flows, the earlier layer first, in its order."""
        edges, own = self.edges, self.edges.backward
        return sorted(zip(edges.previous[own].tolist(), edges.consumer[own].tolist(), strict=True))

    @cached_property
    def around(self) -> IntArray:
        """Returns what must be done before each layer, and after it."""
        tail, back = [0] * len(self._head), self.work.back.tolist()
        for early, late in sorted(self._back, key=lambda pair: pair[1]):
            tail[late] = max(tail[late], tail[early] + back[early])
        found = np.array(self._head) + (0 if self.work.splits else np.array(tail))
        return found

    @cached_property
    def chain(self) -> int:
        """Returns the longest way of a micro-batch forward and back."""
        back: list[int] = self.work.back.tolist()
        forward: list[int] = self.work.forward.tolist()
        returned = [head + own for head, own in zip(self._head, forward, strict=True)]
        for early, late in reversed(self._back):
            returned[early] = max(returned[early], returned[late] + back[late])
        return max(at + own for at, own in zip(returned, back, strict=True))


def layer_work(
    tables: Tables,
    splits: bool,
    mixes: bool,
    recompute: bool,
    more: Mapping[Kind, IntArray],
    slowness: float = 1.0,
) -> LayerWork:
    """Returns the work of layers; mixed whole and split backwards count the shorter, with as late a weight half.

    Args: `more` has what a layer waits for besides, by kind of action; `slowness` is a multiple of the profiled
      device's times, which is rounded down.
    """
    kinds = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
    layers: dict[Kind, IntArray] = {kind: np.diff(tables.time_ns[kind]) for kind in kinds}
    if slowness != 1.0:
        layers = {kind: np.floor(ns * slowness).astype(np.int64) for kind, ns in layers.items()}
    layers |= {kind: layers[kind] + ns for kind, ns in more.items()}
    whole, halves = layers[Kind.B], layers[Kind.I] + layers[Kind.W]
    back, last = (layers[Kind.I], halves) if splits else (whole, whole)
    if mixes:
        back, last = np.minimum(layers[Kind.I], whole), np.minimum(halves, whole)
    total = layers[Kind.F] + last + layers[Kind.R] * int(recompute)
    return LayerWork(forward=layers[Kind.F], back=back, last=last, total=total, splits=splits or mixes)


def own_bytes(tables: Tables, *, shared: bool) -> IntArray:
    """Returns gradient bytes of each layer; those of several layers count at the first if `shared`, else nowhere."""
    found: IntArray = np.zeros(tables.layers, np.int64)
    for parameter in tables.graph.trained:
        if parameter.name not in tables.unsummed and (shared or len(set(parameter.users)) == 1):
            found[min(tables.graph.index[name] for name in parameter.users)] += parameter.bytes
    return found
