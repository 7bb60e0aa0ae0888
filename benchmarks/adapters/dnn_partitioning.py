"""The planning instances of msr-fiddle/dnn-partitioning as elements of a lattice: best contiguous maximum loads.

Reads `*.json` from the folder given, or from the environment variable SHARDWRIGHT_DATA (its folder
`dnn-partitioning`, or that folder itself). A placement is contiguous when each device holds the difference of two
downward-closed sets of the forward graph; a backward node goes where the forward node of its colour went, one without
such a node stands where the backward pass, read in reverse, puts it. A load is the latencies of a device's nodes and
its transfers, each source once a direction; the largest load is the time a sample. `planner.milp.layer_orders.lattice` searches
all such chains of sets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from planner.milp.layer_orders.elements import ElementWork, Sent
from planner.milp.layer_orders.lattice import best_stages


@dataclass(frozen=True, kw_only=True)
class Node:
    latency_ms: float  # infinite where no accelerator takes it
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
            latency_ms=row["fpgaLatency"] if row.get("supportedOnFpga", 1) else float("inf"),
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


def instances(given: str | None = None) -> list[Instance]:
    return [load(path) for path in sorted(folder(given).glob("*.json"))]


def best_load_ms(instance: Instance) -> float:
    """The least maximum load over all contiguous placements; infinite where none fits."""
    if any(node.latency_ms == float("inf") for node in instance.nodes.values()):
        return float("inf")
    found = best_stages(work_of(instance), instance.devices, room=instance.memory_bytes, ideals=1_000_000)
    return float("inf") if found is None else found.load


def work_of(instance: Instance) -> ElementWork:
    """An element a group of nodes, or a set of groups that hang on each other in a circle."""
    order = _order(instance)
    whole = nx.condensation(order)
    element: dict[int, int] = whole.graph["mapping"]
    count = whole.number_of_nodes()
    cost, size = [0.0] * count, [0.0] * count
    for node in instance.nodes.values():
        cost[element[node.group]] += node.latency_ms
        size[element[node.group]] += node.size_bytes
    return ElementWork(
        cost=tuple(cost),
        size=tuple(size),
        before=tuple(tuple(sorted(whole.predecessors(k))) for k in range(count)),
        sent=_sent(instance, element),
    )


def _order(instance: Instance) -> nx.DiGraph[int]:
    """Which group comes before which."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(sorted(node.group for node in instance.nodes.values()))
    forward = {node.group for node in instance.nodes.values() if not node.backward}
    for source, target, _ in instance.edges:
        a, b = instance.nodes[source], instance.nodes[target]
        if a.group == b.group:
            continue
        if not a.backward and not b.backward:
            order.add_edge(a.group, b.group)
        elif a.backward and b.backward and not {a.group, b.group} <= forward:
            order.add_edge(b.group, a.group)
    return order


def _sent(instance: Instance, element: Mapping[int, int]) -> tuple[Sent, ...]:
    """Of each node that others read."""
    readers: dict[int, set[int]] = {}
    costs: dict[int, float] = {}
    for source, target, cost in instance.edges:
        readers.setdefault(source, set()).add(element[instance.nodes[target].group])
        costs[source] = max(costs.get(source, 0.0), cost)
    return tuple(
        Sent(source=element[instance.nodes[source].group], readers=tuple(sorted(found)), cost=costs[source])
        for source, found in readers.items()
    )
