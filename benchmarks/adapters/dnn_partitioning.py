"""The planning instances of msr-fiddle/dnn-partitioning: best contiguous maximum load of a device.

Reads `*_inference.json` and `*_training.json` from the folder given, or from the environment variable
SHARDWRIGHT_DATA (its folder `dnn-partitioning`, or that folder itself). A placement is contiguous when each device
holds the difference of two downward-closed sets of the forward graph; a backward node goes where the forward node of
its colour went. A load is the latencies of a device's nodes and its transfers, each source once a direction; the
largest load is the time a sample. All such chains of sets are searched by a bottleneck path through their lattice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Node:
    latency_ms: float
    size_bytes: float
    backward: bool
    group: int  # nodes of one group share a device


@dataclass(frozen=True, kw_only=True)
class Instance:
    name: str
    nodes: Mapping[int, Node]
    edges: tuple[tuple[int, int, float], ...]  # source, target, milliseconds of a transfer
    devices: int
    memory_bytes: float


def folder(given: str | None = None) -> Path:
    root = given or os.environ.get("SHARDWRIGHT_DATA")
    if not root:
        raise SystemExit("no data: give the folder of dnn-partitioning, or set SHARDWRIGHT_DATA")
    inner = Path(root) / "dnn-partitioning"
    return inner if inner.is_dir() else Path(root)


def load(path: Path) -> Instance:
    data = json.loads(path.read_text())
    nodes = {
        row["id"]: Node(
            latency_ms=row["fpgaLatency"],
            size_bytes=row["size"],
            backward=bool(row["isBackwardNode"]),
            group=row.get("colorClass", -row["id"]),
        )
        for row in data["nodes"]
    }
    edges = tuple((row["sourceId"], row["destId"], row["cost"]) for row in data["edges"])
    return Instance(
        name=path.stem,
        nodes=nodes,
        edges=edges,
        devices=data["maxFPGAs"],
        memory_bytes=data["maxSizePerFPGA"],
    )


def best_load_ms(instance: Instance) -> float:
    """The least maximum load over all contiguous placements; infinite where none fits."""
    groups = _groups(instance)
    position = {group: k for k, group in enumerate(groups)}
    lattice = ideals(_predecessors(instance, position))
    load = _Load(instance, position)
    whole = lattice[-1]
    reach = {0: 0.0}
    for _ in range(instance.devices):
        following: dict[int, float] = dict(reach)
        for begin, so_far in reach.items():
            for end in lattice:
                if end & begin == begin and end != begin:
                    worst = max(so_far, load.of(end & ~begin))
                    if worst < following.get(end, float("inf")):
                        following[end] = worst
        reach = following
    return reach.get(whole, float("inf"))


def _groups(instance: Instance) -> list[int]:
    """Groups in a topological order of the forward graph."""
    forward = {node.group for node in instance.nodes.values() if not node.backward}
    groups = sorted(forward | {node.group for node in instance.nodes.values()})
    after: dict[int, set[int]] = {group: set() for group in groups}
    for source, target in _forward_edges(instance):
        after[target].add(source)
    ordered: list[int] = []
    while len(ordered) < len(groups):
        ready = [g for g in groups if g not in ordered and after[g] <= set(ordered)]
        ordered += ready
    return ordered


def _forward_edges(instance: Instance) -> Iterator[tuple[int, int]]:
    for source, target, _ in instance.edges:
        a, b = instance.nodes[source], instance.nodes[target]
        if not a.backward and not b.backward and a.group != b.group:
            yield a.group, b.group


def _predecessors(instance: Instance, position: Mapping[int, int]) -> list[int]:
    """Of each group the set, as bits, of those that must come before it."""
    found = [0] * len(position)
    for source, target in _forward_edges(instance):
        found[position[target]] |= 1 << position[source]
    return found


def ideals(predecessors: Sequence[int]) -> list[int]:
    """Every downward-closed set, as bits, the smaller before the larger."""
    found, frontier = {0}, [0]
    while frontier:
        following = []
        for ideal in frontier:
            for k, before in enumerate(predecessors):
                larger = ideal | 1 << k
                if larger != ideal and before & ~ideal == 0 and larger not in found:
                    found.add(larger)
                    following.append(larger)
        frontier = following
    return sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))


class _Load:
    """Load of a device by the groups that it holds; infinite where they exceed its memory."""

    def __init__(self, instance: Instance, position: Mapping[int, int]) -> None:
        self.instance = instance
        count = len(position)
        self.latency, self.size = [0.0] * count, [0.0] * count
        for node in instance.nodes.values():
            self.latency[position[node.group]] += node.latency_ms
            self.size[position[node.group]] += node.size_bytes
        self.sends = _sends(instance, position)
        self.known: dict[int, float] = {}

    def of(self, held: int) -> float:
        if held not in self.known:
            inside = [k for k in range(len(self.latency)) if held >> k & 1]
            fits = sum(self.size[k] for k in inside) <= self.instance.memory_bytes
            work = sum(self.latency[k] for k in inside) + sum(self._transfers(held))
            self.known[held] = work if fits else float("inf")
        return self.known[held]

    def _transfers(self, held: int) -> Iterable[float]:
        for source, readers, cost in self.sends:
            if held >> source & 1:
                if readers & ~held:
                    yield cost
            elif readers & held:
                yield cost


def _sends(instance: Instance, position: Mapping[int, int]) -> list[tuple[int, int, float]]:
    """Of each node that others read: its group, the groups of its readers as bits, and its transfer."""
    readers: dict[int, int] = {}
    costs: dict[int, float] = {}
    for source, target, cost in instance.edges:
        readers[source] = readers.get(source, 0) | 1 << position[instance.nodes[target].group]
        costs[source] = max(costs.get(source, 0.0), cost)
    return [(position[instance.nodes[source].group], bits, costs[source]) for source, bits in readers.items()]


def instances(given: str | None = None) -> list[Instance]:
    return [load(path) for path in sorted(folder(given).glob("*.json"))]
