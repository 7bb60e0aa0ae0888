"""Places a configuration on the machines: where each rank stands, and what its links, gradient sums and devices are.

One pipeline stands for all: where replicas differ, the slowest of them counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from planner import cluster as clusters
from planner.arrays import NS_PER_S, FloatArray
from planner.cluster import (
    Cluster,
    Group,
    NodeGroup,
    Slot,
    Spread,
    Sum,
    Summing,
    all_reduce,
    card,
    card_sharers,
    distance,
    slots,
    spread,
    transfer_s,
)
from planner.configurations.configurations import AxisName, Configuration
from planner.group import MeshOnCluster
from planner.spatial import neighbours
from planner.sums import offered, parse

TYPICAL_BYTES = 1 << 12  # of statistics that a group sums
_LARGE_BYTES = 1 << 42  # tells a slope exactly


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of a configuration: slots, links, speed and memory of its workers."""

    grid: tuple[tuple[Slot, ...], ...]  # [replica][worker]; each place in a spatial group is a replica here
    latency_ns: FloatArray  # [worker, worker]
    byte_ns: FloatArray  # [worker, worker]
    slowness: tuple[float, ...]  # a worker, as a multiple of the profiled device's times
    devices: tuple[frozenset[str], ...]  # a worker: the types of its ranks
    capacity_bytes: tuple[int, ...]  # a worker
    margin_bytes: tuple[int, ...]


WorkerGroups = tuple[tuple[int, ...], ...]


class PlacementKey(NamedTuple):
    """Everything of a configuration that the places of its ranks depend on."""

    data: int
    workers: int
    axes: tuple[AxisName, ...]
    grid: tuple[int, ...]


class GroupKey(NamedTuple):
    """Everything of a configuration that the groups depend on whose ranks share a sample."""

    grid: tuple[int, ...]
    devices: int
    regridded: bool


def _placement_key(configuration: Configuration) -> PlacementKey:
    grid = configuration.grid or configuration.mesh
    return PlacementKey(
        data=configuration.data, workers=configuration.workers, axes=configuration.axes, grid=grid
    )


@dataclass(frozen=True)
class PlacementCosts:
    """A cluster with the costs of links and gradient sums, worked out once."""

    cluster: Cluster
    pinned: str = ""  # the name of all sums of gradients that nobody shares; "" is free
    _sums: dict[tuple[Spread, int, Summing], Sum] = field(default_factory=dict)
    _groups: dict[GroupKey, Group] = field(default_factory=dict)
    meshes: dict[tuple[tuple[int, ...], int], MeshOnCluster] = field(default_factory=dict)
    _placements: dict[PlacementKey, Placement] = field(default_factory=dict)
    _worker_sums: dict[tuple[PlacementKey, WorkerGroups, Summing], tuple[Sum, ...]] = field(
        default_factory=dict
    )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Returns all places for a rank, in the order of the machines."""
        return tuple(slots(self.cluster))

    @cached_property
    def by_name(self) -> bool:
        """Returns whether gradients may be summed otherwise than a run does by itself."""
        return bool(self.pinned) or any(link is not None and link.sums for _, link in self.cluster.links)

    def sums_so(self, holders: int) -> bool:
        """Returns whether so many ranks may sum by the pinned name."""
        return holders == 1 or not self.pinned or offered(parse(self.pinned), holders, self.cluster.cards)

    def grid(self, shape: Configuration) -> tuple[tuple[Slot, ...], ...]:
        """Returns the slot of every rank.

        Args: `shape` uses the first slots of the cluster, in their order.
        Returns: [replica][worker]; ranks that share a sample stand side by side and count as replicas.
        """
        order, depth, width, near = self.slots, shape.workers, shape.data, shape.spatial
        apart, inner = (depth, 1) if shape.axes.index("data") < shape.axes.index("pipeline") else (1, width)
        return tuple(
            tuple(order[(r * apart + w * inner) * near + s] for w in range(depth))
            for r in range(width)
            for s in range(near)
        )

    def placement(self, configuration: Configuration, device: str) -> Placement:
        """Returns where the ranks of a configuration stand.

        Args: `device` is the one that was profiled.
        """
        key = _placement_key(configuration)
        if key not in self._placements:
            self._placements[key] = _placed(self, configuration, device)
        return self._placements[key]

    def paces(self, device: str) -> frozenset[float]:
        """Returns what devices take, as multiples of the times of the one that was profiled, `device`."""
        profiled = profiled_rate(self.cluster, device)
        return frozenset(slowness_of(group, profiled) for group in self.cluster.nodes)

    def worker_sums(
        self, configuration: Configuration, groups: WorkerGroups, *, tied: bool = False
    ) -> tuple[Sum, ...]:
        """Returns the all-reduces of a configuration.

        Args: `groups` of workers, each summed over all replicas; `tied` is of parameters that several stages use.
        Returns: one `Sum` for each group.
        """
        how: Summing = "itself" if tied or configuration.mesh else "free"
        in_parts = configuration.shard or configuration.held  # each rank adds up the part that it updates
        key = _placement_key(configuration), groups, "direct" if in_parts else how
        if key not in self._worker_sums:
            grid = self.grid(configuration)
            over = [[row[w] for row in grid for w in group] for group in groups]
            self._worker_sums[key] = tuple(self.sums(over, key[-1]))
        return self._worker_sums[key]

    def column_sums(self, configuration: Configuration) -> tuple[Sum, ...]:
        """Returns the all-reduces over the replicas of a configuration, one for each worker."""
        return self.worker_sums(configuration, tuple((w,) for w in range(configuration.workers)))

    def spatial_group(self, configuration: Configuration) -> Group:
        """Returns the worst of the groups that share a sample.

        Returns: latency, nanoseconds per byte and the all-reduce of the group.
        """
        regridded = bool(configuration.then) or configuration.shared
        key = GroupKey(grid=configuration.grid, devices=configuration.devices, regridded=regridded)
        if key not in self._groups:
            self._groups[key] = self._spatial_group(configuration)
        return self._groups[key]

    def _spatial_group(self, shape: Configuration) -> Group:
        """Returns the worst of the groups that share a sample; where the grid changes, any two ranks talk to each other."""
        count, near = shape.devices, shape.spatial
        groups = [self.slots[first : first + near] for first in range(0, count, near)]
        every = shape.then or shape.shared
        apart_by = list(combinations(range(near), 2)) if every else neighbours(shape.grid)
        pairs = [(group[a], group[b]) for group in groups for a, b in apart_by]
        sharers = card_sharers(self.cluster, pairs)
        apart = {distance(self.cluster, a, b): (a, b) for a, b in pairs}
        lines = [_line(self.cluster, a, b, sharers) for a, b in apart.values()]
        sums = self.sums(groups, "ring")
        return Group(
            latency_ns=max(start for start, _ in lines),
            byte_ns=max(slope for _, slope in lines),
            sum=max(sums, key=lambda each: int(each.ns(np.array([TYPICAL_BYTES]))[0])),
        )

    def sums(self, groups: Sequence[Sequence[Slot]], how: Summing) -> list[Sum]:
        """Returns the all-reduce of each group of slots.

        Args: each group sums by itself; all groups do at once, so several may share a network card. `how` says which
            sums there are.
        Returns: nanoseconds by bytes, one for each group.
        """
        sharers = _sharers(self.cluster, groups)
        found = []
        for group in groups:
            over = spread(self.cluster, group)
            key = over, sharers, how
            if key not in self._sums:
                self._sums[key] = all_reduce(self.cluster, over, how, pinned=self.pinned, sharers=sharers)
            found.append(self._sums[key])
        return found

    @cached_property
    def apart(self) -> tuple[tuple[Slot, Slot], ...]:
        """Returns a pair of slots for every distance at which there are two."""
        racks: dict[int, Slot] = {}
        found: dict[str, tuple[Slot, Slot]] = {}
        for before, place in pairwise(self.slots):
            mate = racks.setdefault(self.cluster.racks[before.node], before)
            for other in (before, racks.get(self.cluster.racks[place.node], mate)):
                found.setdefault(distance(self.cluster, other, place), (other, place))
        return tuple(found.values())

    def least_hop_ns(self, size: int) -> float:
        """Returns the nanoseconds of one message over the fastest link between two slots.

        Args: `size` in bytes.
        """
        return min((transfer_s(self.cluster, a, b, size) * NS_PER_S for a, b in self.apart), default=0.0)


def _placed(machines: PlacementCosts, shape: Configuration, device: str) -> Placement:
    """Returns of the ranks of each worker the slowest device, the slowest links and the least memory."""
    cluster, grid = machines.cluster, machines.grid(shape)
    columns = [[row[w] for row in grid] for w in range(shape.workers)]
    latency, byte = _links(cluster, columns)
    groups = [[cluster.groups[place.node] for place in column] for column in columns]
    profiled = profiled_rate(cluster, device)
    tightest = [min(column, key=lambda g: g.limit_bytes) for column in groups]
    return Placement(
        grid=grid,
        latency_ns=latency,
        byte_ns=byte,
        slowness=tuple(max(slowness_of(g, profiled) for g in column) for column in groups),
        devices=tuple(frozenset(g.device for g in column) for column in groups),
        capacity_bytes=tuple(g.capacity_bytes for g in tightest),
        margin_bytes=tuple(g.margin_bytes for g in tightest),
    )


def _links(cluster: Cluster, columns: Sequence[Sequence[Slot]]) -> tuple[FloatArray, FloatArray]:
    """Returns [sender, receiver] latencies and nanoseconds a byte: the worst over the replicas.

    Replicas behind one network card whose messages leave their node share it.
    """
    count = len(columns)
    nodes = np.array([[place.node for place in column] for column in columns]).T
    racks = np.array(cluster.racks)[nodes]
    same_node = nodes[:, :, None] == nodes[:, None, :]
    same_rack = racks[:, :, None] == racks[:, None, :]
    latency, byte = np.zeros((2, count, count))
    apart, sharers = ~np.eye(count, dtype=np.bool_), np.ones((count, count), np.int64)
    if any((g.devices_per_card or g.devices_per_node) > 1 for g in cluster.nodes):
        for a, b in np.argwhere(apart).tolist():
            sharers[a, b] = card_sharers(cluster, zip(columns[a], columns[b], strict=True))
    for mask in (same_node, same_rack & ~same_node, ~same_rack):
        there = apart & mask.any(0)
        for many in np.unique(sharers[there]).tolist():
            own = there & (sharers == many)
            replica, a, b = np.argwhere(mask & own)[0].tolist()
            start, slope = _line(cluster, columns[a][replica], columns[b][replica], many)
            latency[own], byte[own] = np.maximum(latency[own], start), np.maximum(byte[own], slope)
    return latency, byte


def _line(cluster: Cluster, a: Slot, b: Slot, sharers: int) -> tuple[float, float]:
    start = transfer_s(cluster, a, b, 0, sharers=sharers)
    slope = (transfer_s(cluster, a, b, _LARGE_BYTES, sharers=sharers) - start) / _LARGE_BYTES
    return start * NS_PER_S, slope * NS_PER_S


def slowness_of(group: NodeGroup, profiled: float | None) -> float:
    """Returns the ratio of peak rates, at least 1; 1 where the catalogue does not know a rate."""
    own = _rate(group)
    return 1.0 if profiled is None or own is None else max(1.0, profiled / own)


def profiled_rate(cluster: Cluster, device: str) -> float | None:
    """Returns the rate of the profiled device: the best of its kind here, else the rate in the catalogue.

    Rates that a probe found on the nodes tell them apart; beside the peak on a data sheet they would all seem slow.
    """
    here = [rate for group in cluster.nodes if group.device == device and (rate := _rate(group)) is not None]
    known = clusters.CATALOGUE.get(device)
    return max(here, default=known.fp32_flop_per_s if known else None)


def _rate(group: NodeGroup) -> float | None:
    known = clusters.CATALOGUE.get(group.device)
    return group.rates.fp32_flop_per_s or (known.fp32_flop_per_s if known else None)


def _sharers(cluster: Cluster, groups: Sequence[Sequence[Slot]]) -> int:
    """Returns the most devices behind one network card that sum with other nodes; at least 1."""
    outgoing = {place for group in groups if len({p.node for p in group}) > 1 for place in group}
    return max(Counter((place.node, card(cluster, place)) for place in outgoing).values(), default=1)
