"""Other questions about the same costs: other machines, other memory, other pins."""

from __future__ import annotations

from collections.abc import Callable

from planner.cluster import Cluster, NodeGroup, with_nodes
from planner.milp.fixed import Pins
from planner.milp.space import Space


def changed(space: Space, *, cluster: Cluster | None = None, pins: Pins | None = None) -> Space:
    """Another question about the same costs: what was worked out for layers and orders is kept."""
    return Space(
        profile=space.profile,
        cluster=cluster or space.cluster,
        batch=space.batch,
        precision=space.precision,
        execution=space.execution,
        pins=pins or space.pins,
        _tables=space._tables,
        _orders=space._orders,
    )


def with_at_most(cluster: Cluster, limit: int) -> Cluster:
    """The same machines, of whose devices a plan may use no more than `limit` bytes, their margin aside."""
    return _with_memory(cluster, lambda group: min(group.capacity_bytes, group.margin_bytes + limit))


def with_more(cluster: Cluster, more: int) -> Cluster:
    """The same machines with so many bytes more on each device."""
    return _with_memory(cluster, lambda group: group.capacity_bytes + more)


def _with_memory(cluster: Cluster, size: Callable[[NodeGroup], int]) -> Cluster:
    groups = tuple(group.model_copy(update={"memory_bytes": size(group)}) for group in cluster.nodes)
    return with_nodes(cluster, groups)
