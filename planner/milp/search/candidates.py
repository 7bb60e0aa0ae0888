"""The configurations of a question, the most promising first, listed only as far as anything in them may win.

Configurations whose samples lie alike are a group. Of a group it is known, before anything of it is listed, that every
worker computes its share of all layers, and that a pipe with the most micro-batches takes them all through the longest
layer. Where samples may be cut in space there are hundreds of thousands of configurations, and few groups that may win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.configurations import Configuration, Pins, SplitGroup, choice_of, groups, of_group
from planner.cost import GridChoice, least_work_ns
from planner.cuts import LayerWork
from planner.milp.instance import Instance
from planner.milp.search.totals import TotalsBound
from planner.profile import CostKey
from planner.proof import UNFIT_NS
from planner.schedule import FAMILIES

PLAINEST = list(FAMILIES)  # on one worker many families take the same time: the plainest is named
Rank = tuple[float, int, Configuration]


class _Degrees(NamedTuple):
    """What groups with as many replicas and ranks of a sample have in common: a size, and counts of their pipes."""

    size: int
    micros: IntArray  # of each number of workers and pipes
    workers: IntArray
    fullest: IntArray  # micro-batches of the pipe that has most


@dataclass
class Candidates:
    """The configurations of a planning instance; unless pinned, those that recompute or share are not among them.

    They follow later, where memory asks for them.
    """

    instance: Instance
    _known: dict[tuple[int, int, int, bool], _Degrees] = field(default_factory=dict)
    _work: dict[tuple[int, GridChoice], IntArray | None] = field(default_factory=dict)
    # Those listed, and of how many groups: changed together, so that Ctrl-C finds nothing half done
    _done: tuple[tuple[Rank, ...], int] = ((), 0)

    @cached_property
    def _pins(self) -> Pins:
        pinned = self.instance.pins
        return replace(pinned, recompute=bool(pinned.recompute), shard=bool(pinned.shard))

    @cached_property
    def _bound(self) -> TotalsBound:
        return TotalsBound(self.instance)

    @cached_property
    def _every(self) -> list[SplitGroup]:
        asked = self.instance
        every = groups(asked.cluster, asked.batch, asked.micros(), self._pins, asked.splits)
        return [group for group in every if self._degrees(group).size]

    @cached_property
    def _groups(self) -> list[tuple[float, SplitGroup]]:
        """The groups with their bounds, the lowest first."""
        return sorted(((self._least_ns(group), group) for group in self._every), key=lambda entry: entry[0])

    def _of(self, group: SplitGroup) -> Iterator[Configuration]:
        asked = self.instance
        every = of_group(asked.cluster, group, asked.layers, asked.batch, self._pins)
        return (shape for shape in every if asked.permits(shape))

    def _degrees(self, group: SplitGroup) -> _Degrees:
        key = group.micro, group.data, group.split.ranks, bool(group.split.mesh)
        if key not in self._known:
            own = list(self._of(group))
            counts = sorted({(x.micros, x.workers, -(-x.micros // x.pipes)) for x in own})
            self._known[key] = _Degrees(len(own), *np.array(counts, np.int64).reshape(-1, 3).T)
        return self._known[key]

    def _least_ns(self, group: SplitGroup) -> float:
        """Returns a lower bound of all configurations of a group, and of their variants that recompute or share."""
        degrees, key = self._degrees(group), (group.micro, group.split)
        if key not in self._work:
            self._work[key] = self._work_ns(*key)
        if (layers := self._work[key]) is None:
            return 0.0
        shared = int(layers.sum()) * degrees.micros / degrees.workers
        return float(np.maximum(shared, int(layers.max()) * degrees.fullest).min())

    def _work_ns(self, micro: int, choice: GridChoice) -> IntArray | None:
        """Returns what each layer computes at least; None where devices differ, or have tensors in parts."""
        asked = self.instance
        paces = asked.machines.paces(asked.profile.device)
        if choice.mesh or asked.profile.by_type or any(pace != 1 for pace in paces):
            return None
        setting = CostKey("", micro, (), asked.precision, asked.execution)
        return least_work_ns(asked.costs, setting, choice, asked.prices)

    @cached_property
    def _size(self) -> int:
        return sum(self._degrees(group).size for group in self._every)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, shape: Configuration) -> bool:
        group = SplitGroup(shape.micro, shape.data, choice_of(shape))
        return group in self._every and shape in self._of(group)

    def __iter__(self) -> Iterator[Configuration]:
        """Yields all, as they come."""
        return (shape for group in self._every for shape in self._of(group))

    @property
    def unlisted(self) -> int:
        """Returns how many are not listed yet."""
        return len(self) - len(self._done[0])

    def first(self, count: int) -> list[Configuration]:
        """Returns so many of the most promising configurations, or all."""
        while (at := self._done[1]) < len(self._groups):
            ranks = self._done[0]
            if len(ranks) >= count and ranks[count - 1][0] < self._groups[at][0]:
                break
            self._list(min(len(self._groups), 2 * at + 1))
        return [shape for *_, shape in self._done[0][:count]]

    def below(self, ns: float) -> list[Configuration]:
        """Returns the configurations of all groups that may take less, the most promising first.

        Those that are not among them take `ns` nanoseconds or more, and so do their variants.
        """
        until = self._done[1]
        while until < len(self._groups) and self._groups[until][0] < ns:
            until += 1
        self._list(until)
        return [shape for *_, shape in self._done[0]]

    def _list(self, until: int) -> None:
        ranks, done = self._done
        new = [
            (guess_ns(self._bound, shape), PLAINEST.index(shape.family), shape)
            for _, group in self._groups[done:until]
            for shape in self._of(group)
        ]
        if until > done:
            self._done = tuple(sorted([*ranks, *new])), until


def ranked(instance: Instance) -> list[Configuration]:
    """Returns all configurations of a planning instance, the most promising first."""
    return Candidates(instance).below(UNFIT_NS)


def guess_ns(bound: TotalsBound, shape: Configuration) -> float:
    """Returns about what a configuration may take, to know where to look first; it bounds nothing."""
    known = bound.instance.kept.guesses
    if shape not in known:
        known[shape] = _guessed(bound, shape)
    return known[shape]


def _guessed(bound: TotalsBound, shape: Configuration) -> float:
    tables, work = bound.instance.tables(shape), bound.work(shape)
    bytes_a_worker = np.array([tables.summed[0, -1] * shape.pipes // shape.workers])
    machines, several = bound.instance.machines, shape.data * shape.spatial > 1
    over = bound.units.columns(shape)[:1] if shape.held else machines.worker_sums(shape, ((0,),)) * several
    sums = sum(int(each.ns(bytes_a_worker)[0]) for each in over)
    wire = bound.instance.cluster_link_ns(tables.typical_crossing_bytes) if shape.workers > 1 else 0.0
    hops = 2 * (shape.stages - 1) * wire
    load = bound.load_ns(shape) + bound.step_ns(shape)
    idle = BUBBLES[shape.family](shape, work) if shape.workers > 1 else 0.0
    handed = 0.5 if shape.shard else 0.0  # of the sums: every holder hands on what it has updated
    return max(load + idle, bound.free_ns(shape)) + float(sums) * (1 + handed) + hops


def short_bytes(instance: Instance, shape: Configuration) -> int:
    """Returns the bytes by which the state of the model, spread evenly, exceeds the largest device; 0 where it fits."""
    tables = instance.tables(shape) if shape.mesh else instance.whole(shape.micro)
    share = shape.updaters
    trained = float(tables.gradients[0, -1])
    state = tables.elements[0, -1] * tables.state_bytes_per_element / share
    averages = trained if tables.averaged else 0.0
    parts = {"": 0.0, "gradients": trained + averages, "parameters": 2 * trained + averages}[shape.held]
    spared = parts * (1 - 1 / share)
    whole = float(tables.parameters[0, -1]) + averages + trained + state - spared
    most = max(group.limit_bytes for group in instance.cluster.nodes)
    return max(0, int(shape.pipes * whole / shape.workers) - most)


def plainest(shape: Configuration) -> Configuration:
    """Returns the configuration in which nothing recomputes and nobody shares: no variant computes in less time."""
    return replace(shape, recompute=False, sparing=False, chosen=(), shard=False, held="", ranks=0)


Bubble = Callable[[Configuration, LayerWork], float]


def _whole(shape: Configuration, work: LayerWork) -> float:
    return work.all_ns / shape.workers * (shape.workers - 1) / shape.chunks


def _forward(shape: Configuration, work: LayerWork) -> float:
    return float(work.forward.sum()) / shape.workers * (shape.workers - 1) / shape.chunks


def _paired(shape: Configuration, work: LayerWork) -> float:
    full, left = divmod(shape.micros, shape.workers)
    # Each unit behind the first costs half of it, and a last one that is not full takes as long as the others
    apart = max(0.0, shape.workers / shape.pairs - 2) * (max(1, full) + 1) / 2
    missing = shape.workers - left if full and left else 0
    return float(work.last.sum()) / shape.workers * max(apart, missing)


def _paired_split(shape: Configuration, work: LayerWork) -> float:
    return float(work.forward.sum()) / shape.workers * (shape.workers / shape.pipes - 1) / shape.chunks


# idle time of a worker, as the families have it for equal stages
BUBBLES: Mapping[str, Bubble] = dict.fromkeys(FAMILIES, _forward) | {
    "gpipe": _whole,
    "1f1b": _whole,
    "interleaved": _whole,
    "wave": _whole,
    "chimera": _paired,
    "chimera-zb": _paired_split,
}
