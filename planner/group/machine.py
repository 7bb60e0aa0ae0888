"""Seconds that collectives take along each axis of a mesh, as it lies on the machine.

The ranks of a group are neighbours in the order of slots, and the last axis of a mesh counts fastest. So a mesh
`4x2` on nodes of two devices has its second axis inside nodes, and its first across them. All groups of a plan talk
along an axis at the same time. Those that leave a node share its network cards. What bringing a tensor from one layout to
another takes is looked up by form instead of by size (`Passages`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm, prod
from typing import Final

from planner.arrays import NS_PER_S
from planner.cluster import (
    Cluster,
    Slot,
    Spread,
    card_sharers,
    exchange_s,
    gather_s,
    link_over,
    slots,
    spread,
    sum_s,
    total_devices,
)
from planner.errors import BadInput
from planner.layout import Collective, DimCut, GroupLayout, Mesh, Passage, parted, path, positions, sent
from planner.sums import SumLoad, SumRate, line_of, parse

_LARGE: Final = 1 << 40  # bytes, of which latencies are no part worth counting
_DIRECT: Final = "direct"
_SECONDS: Final[Mapping[Collective, Callable[..., float]]] = {
    "gather": gather_s,
    "scatter": gather_s,
    "reduce": sum_s,
    "exchange": exchange_s,
}


# Between hosts all ranks of an axis send each other parts at once; sums are added up in between.
_ROUNDS: Final[Mapping[Collective, int]] = {"gather": 1, "scatter": 1, "reduce": 2, "exchange": 1}


def round_s(cluster: Cluster, over: Spread, size_bytes: float, *, sharers: int = 1) -> float:
    """Returns the seconds in which each rank of some hosts sends every other one a part of a tensor.

    A sum that is called direct is two such rounds, so that its rate counts where one was measured.

    Args: `size_bytes` are of the whole tensor; `sharers` counts the groups that go through one network card.
    """
    if over.places < 2:
        return 0.0
    far = over.nodes > 1
    wire = link_over(cluster, over.far if far else "node")
    plain = SumRate(latency_s=wire.latency_s, bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s)
    rate = wire.sums.get(_DIRECT, plain)
    behind = -(-over.fullest // over.cards) if far else 1
    line = line_of(parse(_DIRECT), SumLoad(places=over.places, behind=behind, cards=cluster.cards))
    byte_s = (sharers if far else 1) / rate.bandwidth_bytes_per_s
    return line.seconds(size_bytes, rate.latency_s, byte_s) / 2


@dataclass(frozen=True, kw_only=True)
class MeshOnCluster:
    """A mesh of ranks on devices of a cluster; without one, each byte that a rank sends is a nanosecond."""

    mesh: Mesh
    cluster: Cluster | None = field(default=None, hash=False)
    places: tuple[tuple[Slot, ...], ...] = ()  # of the ranks of each group; empty: the first devices
    _found: dict[tuple[int, ...], tuple[Spread, int]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return prod(self.mesh)

    def within(self, axis: int) -> bool:
        """Returns whether all ranks along an axis are of one node."""
        return self.cluster is None or self._spread((axis,))[0].nodes == 1

    def _spread(self, axes: tuple[int, ...]) -> tuple[Spread, int]:
        """Returns how the ranks along axes lie, and how many groups of them share a network card."""
        if axes in self._found:
            return self._found[axes]
        cluster = self.cluster
        assert cluster is not None
        groups: dict[tuple[int, ...], list[Slot]] = defaultdict(list)
        for number, places in enumerate(self.places or (tuple(itertools.islice(slots(cluster), self.size)),)):
            for place, position in zip(places, positions(self.mesh), strict=True):
                others = (x for axis, x in enumerate(position) if axis not in axes)
                groups[number, *others].append(place)
        spreads = {spread(cluster, group) for group in groups.values()}
        worst = max(spreads, key=lambda x: sum_s(cluster, x, _LARGE))
        self._found[axes] = worst, card_sharers(cluster, groups.values())
        return self._found[axes]

    def ns(self, collective: Collective, axes: tuple[int, ...], size_bytes: float) -> float:
        """Returns the nanoseconds of a collective along axes.

        Args: `size_bytes` are of the tensor as it is whole along the axes.
        """
        function = _SECONDS.get(collective)
        if size_bytes <= 0 or function is None:
            return 0.0
        ranks = prod(self.mesh[axis] for axis in axes)
        if self.cluster is None:
            return sent(collective, size_bytes, ranks)
        over, sharers = self._spread(axes)
        if self.cluster.of_hosts:
            rounds, size = _ROUNDS[collective], size_bytes / (ranks if collective == "exchange" else 1)
            seconds = rounds * round_s(self.cluster, over, size, sharers=sharers)
        else:
            seconds = function(self._as_told, over, size_bytes, sharers=sharers)
        fitted = self.cluster.fitted.conversion if self.cluster.fitted else None
        return seconds * (fitted.factor if fitted else 1.0) * NS_PER_S

    @cached_property
    def _as_told(self) -> Cluster:
        """Returns the cluster without what runs have taught of other sums."""
        assert self.cluster is not None
        return self.cluster.model_copy(update={"fitted": None})

    def turns(self, axis: int) -> int:
        """Returns how many collectives make what goes round the ranks of an axis, as keys and values of a ring do."""
        return self.mesh[axis] - 1 if self.cluster is not None and self.cluster.of_hosts else 1

    def slope_ns(self, collective: Collective, axes: tuple[int, ...]) -> float:
        """Returns the nanoseconds a byte of a collective on so many bytes that latencies do not count."""
        return (self.ns(collective, axes, 2 * _LARGE) - self.ns(collective, axes, _LARGE)) / _LARGE

    def passage_ns(
        self, steps: Sequence[Passage], element_bytes: int, *, trained: bool, again: int = 0
    ) -> tuple[float, float]:
        """Returns the nanoseconds of the steps of a conversion forward, and backward.

        Args: `trained` says whether the tensor has a gradient; `again` how often what is gathered is not
            kept, but gathered once more for the backward pass.
        """
        forward, backward = 0.0, 0.0
        for step in steps:
            others = [a for cut in step.source.cuts if cut is not None for a in cut.axes if a != step.axis]
            size = element_bytes * prod(step.source.shape) / prod(self.mesh[a] for a in others)
            forward += self.ns(step.forward, (step.axis,), size)
            ways = [step.backward] if trained else []
            ways += ["gather"] * (again if trained and step.forward == "gather" else 0)
            backward += sum(self.ns(way, (step.axis,), size) for way in ways)
        return forward, backward


def meshes(size: int, axes: int) -> Iterator[Mesh]:
    """Yields every mesh of a number of ranks, with at most so many axes, of which none has a single rank.

    Args: `size` is the number of ranks; one rank has the mesh (1,).
    """
    if size == 1 or axes == 1:
        yield (size,)
        return
    yield (size,)
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in meshes(size // first, axes - 1))


def on_cluster(mesh: Mesh, cluster: Cluster) -> MeshOnCluster:
    """Returns a mesh on the first devices of a cluster.

    Raises: BadInput where the cluster has fewer devices, or the ranks are neither of one node nor whole nodes.
    """
    if prod(mesh) > total_devices(cluster):
        raise BadInput(
            f"a group of {prod(mesh)} ranks",
            where=cluster.name,
            allowed=f"up to {total_devices(cluster)}, which are its devices",
        )
    counts = [group.devices_per_node for group in cluster.groups]
    if prod(mesh) > counts[0] and prod(mesh) not in itertools.accumulate(counts):
        raise BadInput(
            f"a group of {prod(mesh)} ranks",
            where=cluster.name,
            allowed=f"up to {counts[0]}, which are a node, or all ranks of several nodes",
        )
    return MeshOnCluster(mesh=mesh, cluster=cluster)


def placed_text(mesh: MeshOnCluster) -> str:
    """Returns where each axis of a mesh lies, in words."""
    if mesh.size == 1:
        return "one rank"
    said: Mapping[bool, str] = {True: "inside a node", False: "across nodes"}
    parts = [f"axis {axis} of {n} {said[mesh.within(axis)]}" for axis, n in enumerate(mesh.mesh)]
    return ", ".join(parts)


class Passages:
    """Nanoseconds of conversions on one mesh; those of tensors of one form share their shortest path."""

    def __init__(self, on: MeshOnCluster, element_bytes: int) -> None:
        self.on, self.element_bytes = on, element_bytes
        self._ns: dict[tuple[GroupLayout, GroupLayout, bool], float] = {}
        self._steps: dict[tuple[GroupLayout, GroupLayout, bool], list[tuple[Collective, int, float]]] = {}

    def ns(self, source: GroupLayout, target: GroupLayout, trained: bool) -> float:
        """Returns the nanoseconds of a conversion, forward and backward where the tensor is trained."""
        if source == target:
            return 0.0
        key = source, target, trained
        if key not in self._ns:
            size = prod(source.shape) * self.element_bytes
            self._ns[key] = sum(
                self.on.ns(kind, (axis,), size * share) for kind, axis, share in self._collectives(*key)
            )
        return self._ns[key]

    def _collectives(
        self, source: GroupLayout, target: GroupLayout, trained: bool
    ) -> list[tuple[Collective, int, float]]:
        """Returns each collective of a conversion with its axis and its share of the whole tensor."""
        form = _form(source, target, self.on.mesh)
        key = (*form, trained)
        if key not in self._steps:
            found: list[tuple[Collective, int, float]] = []
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
