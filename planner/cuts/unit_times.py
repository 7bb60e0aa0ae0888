"""The work of every layer for one micro-batch, what gathers and sums of its unit add to it, and the longest ways through
the layers: for bounds from totals alone. Units are there where replicas share gradients or parameters by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cluster import Slot, Sum
from planner.configurations import TYPICAL_BYTES, Configuration, PlacementCosts
from planner.cost import Edges, Tables, layer_ns
from planner.cuts.stage_costs import COMPUTE
from planner.schedule import FAMILIES, Kind

# gathers and sums of each unit, in an action
_MOVED: dict[str, dict[Kind, int]] = {
    "gradients": {Kind.B: 1, Kind.W: 1},
    "parameters": {Kind.F: 1, Kind.R: 1, Kind.B: 2, Kind.I: 1, Kind.W: 1},
}
_FROM_THE_LAST = (Kind.B, Kind.I, Kind.W)


def shared_by(shape: Configuration) -> tuple[object, ...]:
    """Returns what gathers and sums of units depend on, besides the tables; nothing where there are none."""
    if not shape.held:
        return ()
    return shape.held, shape.ranks, shape.data, shape.workers, shape.axes, shape.mesh


@dataclass(frozen=True, eq=False)
class UnitFloors:
    """The least that gathers and sums of units take, whatever the cut: for the bounds of totals."""

    machines: PlacementCosts
    device: str  # that was profiled
    _rows: dict[object, tuple[Sum, ...]] = field(default_factory=dict)
    _found: dict[object, tuple[IntArray, IntArray]] = field(default_factory=dict)

    def rows(self, shape: Configuration) -> tuple[Sum, ...]:
        """Returns the different all-reduces over replicas that share gradients or parameters."""
        key = shared_by(shape)[1:]
        if key not in self._rows:
            self._rows[key] = tuple(dict.fromkeys(row_sums(self.machines, shape)))
        return self._rows[key]

    def columns(self, shape: Configuration) -> tuple[Sum, ...]:
        """Returns the different sums once a step over ranks that hold the same part; none where one rank holds it."""
        if shape.data * shape.spatial == shape.ranks:
            return ()
        workers = [(worker,) for worker in range(shape.workers)]
        return tuple(dict.fromkeys(column_sums(self.machines, shape, workers)))

    def exposed(self, shape: Configuration, tables: Tables) -> Mapping[Kind, IntArray]:
        """Returns what gathers and sums of units add to each layer at least, by kind of action."""
        return dict(zip(COMPUTE, self._of(shape, tables)[0], strict=True)) if shape.held else {}

    def begun_ns(self, shape: Configuration, tables: Tables) -> float:
        """Returns what a worker waits on average for those that hide behind nothing."""
        if not shape.held:
            return 0.0
        at = dict(zip(COMPUTE, self._of(shape, tables)[1].tolist(), strict=True))
        family = FAMILIES[shape.family]
        whole, halves = at[Kind.B], at[Kind.I] + at[Kind.W]
        back = min(whole, halves) if family.mixes or shape.listed else halves if family.splits else whole
        return float(shape.micros * shape.chunks * (at[Kind.F] + back + at[Kind.R] * shape.recompute))

    def _of(self, shape: Configuration, tables: Tables) -> tuple[IntArray, IntArray]:
        """Returns `exposed` behind the slowest device and on the best links."""
        key = (tables.key, shared_by(shape))
        if key not in self._found:
            slowness = max(self.machines.placement(shape, self.device).slowness)
            work = np.stack([layer_ns(tables, kind, tables.types) for kind in COMPUTE])
            slow: IntArray = np.ceil(work * slowness).astype(np.int64)
            found = [exposed(shape, tables, row, slow) for row in self.rows(shape)]
            layers, begun = zip(*found, strict=True)
            self._found[key] = np.minimum.reduce(layers), np.minimum.reduce(begun)
        return self._found[key]


def row_sums(machines: PlacementCosts, configuration: Configuration) -> tuple[Sum, ...]:
    """Returns the all-reduce over the replicas of each worker that share gradients or parameters, the slowest of all.

    Those of a group share what they have at the same place of it.

    Args: `machines` have the links; `configuration` has how many they are; a gather, or a sum of parts, takes half of it.
    """
    near, ranks = configuration.spatial, configuration.ranks
    by_place = [machines.grid(configuration)[place::near] for place in range(near)]
    rows = [grid[first : first + ranks] for grid in by_place for first in range(0, len(grid), ranks)]
    over = [[[row[w] for row in near] for near in rows] for w in range(configuration.workers)]
    return _slowest(machines, over)


def column_sums(
    machines: PlacementCosts, configuration: Configuration, groups: Sequence[Sequence[int]]
) -> tuple[Sum, ...]:
    """Returns the all-reduce over the ranks that hold the same part, for each group of workers with a common weight.

    Args: `machines` and `configuration` are as for `row_sums`. A sum over one rank takes nothing.
    """
    grid, ranks, near = machines.grid(configuration), configuration.ranks, configuration.spatial
    same = [[row for i, row in enumerate(grid) if i // near % ranks == place] for place in range(ranks)]
    over = [[[row[w] for row in own for w in group] for own in same] for group in groups]
    found = _slowest(machines, over)
    alone = [len(places[0]) == 1 for places in over]
    return tuple(each.of_parts(0 if one else ranks) for each, one in zip(found, alone, strict=True))


def _slowest(machines: PlacementCosts, over: Sequence[Sequence[Sequence[Slot]]]) -> tuple[Sum, ...]:
    """Returns the slowest of several sums for each entry; all of them are made at once."""
    every = iter(machines.sums([group for groups in over for group in groups], "direct"))
    size = np.array([TYPICAL_BYTES])
    return tuple(
        max([next(every) for _ in groups], key=lambda each: int(each.ns(size)[0])) for groups in over
    )


def with_units(
    shape: Configuration, tables: Tables, rows: Sequence[Sum], prefix: IntArray, launch: Sequence[int]
) -> list[int]:
    """Adds to the times of layers what gathers and sums of their units are not hidden by, and returns new launches.

    Args: `rows` has the all-reduce of each stage, `prefix` [kind, stage, layers + 1] the times of layers, which change.
    """
    added: IntArray = np.zeros(len(COMPUTE), np.int64)
    for stage, row in enumerate(rows):
        more, begun = exposed(shape, tables, row, np.diff(prefix[:, stage]).astype(np.int64))
        prefix[:, stage, 1:] += more.cumsum(1)
        added = np.maximum(added, begun)
    return [before + more for before, more in zip(launch, added.tolist(), strict=True)]


def exposed(shape: Configuration, tables: Tables, row: Sum, work: IntArray) -> tuple[IntArray, IntArray]:
    """Returns what gathers and sums of units are not hidden by, [kind, layer], and what each action takes besides.

    A gather hides behind the unit that runs before it, a sum of gradients behind the unit that runs after it. The first
    gather and the last sum of an action hide behind nothing: the largest unit's is taken.

    Args: `row` is the all-reduce over those who share; `work` has the times of layers, [kind, layer].
    """
    units = tables.units
    found: IntArray = np.zeros_like(work)
    begun: IntArray = np.zeros(len(COMPUTE), np.int64)
    again = (
        np.bincount(units.of_layer, _walks(tables), len(units.bytes)) > 0
    )  # weight halves that need weights
    wire = (row.ns(units.bytes) + 1) // 2
    for at, kind in enumerate(COMPUTE):
        times = _MOVED[shape.held].get(kind, 0)
        moved = (times + again if kind is Kind.W and shape.held == "parameters" else times) * wire
        if not moved.any():
            continue
        works = np.bincount(units.of_layer, work[at], len(wire))
        near = np.append(works[1:], 0) if kind in _FROM_THE_LAST else np.append(0, works[:-1])
        open_ = np.maximum(moved - near, 0)
        found[at] = np.ceil(open_[units.of_layer] * units.share).astype(np.int64)
        begun[at] = int(moved.max())
    return found, begun


def _walks(tables: Tables) -> BoolArray:
    """Returns [layer]: whether its backward is halved by a walk."""
    each = np.arange(tables.layers)
    return tables.walking.stages[each, each + 1]


@dataclass(frozen=True, eq=False)
class LayerWork:
    """The nanoseconds of every layer for one micro-batch, [layer]."""

    forward: IntArray
    back: IntArray  # what its gradient waits for on its way to the layer before
    last: IntArray  # everything from then on: the weight half of a split backward included
    total: IntArray
    splits: bool  # a weight half may come last

    @cached_property
    def all_ns(self) -> float:
        return float(self.total.sum())

    @property
    def around(self) -> IntArray:
        return self.head + self.tail  # before each layer, and after it

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
    _beside: dict[int, int] = field(default_factory=dict)

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

    def beside(self, tables: Tables, stages: int) -> int:
        """Returns the most work of two neighbouring stages that do not talk."""
        if (key := min(stages, 4)) not in self._beside:  # the first two, some in the middle, or the last two
            before = np.concatenate([[0], np.cumsum(self.work.total)])
            ways = [tables.talk.beside(p == 1, p == key - 1) for p in range(1, key)]
            self._beside[key] = int(max((before[most] - before[begins]).max() for begins, most in ways))
        return self._beside[key]


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
