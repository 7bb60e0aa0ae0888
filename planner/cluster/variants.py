"""The same cluster with something changed: other nodes, other memory, another network."""

from __future__ import annotations

from collections.abc import Callable

from planner.cluster.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput


def with_node_groups(cluster: Cluster, nodes: tuple[NodeGroup, ...]) -> Cluster:
    """The same links, other machines; ValueError where these need a link that is not told."""
    fields = {name: getattr(cluster, name) for name in Cluster.model_fields}
    return Cluster.model_validate({**fields, "nodes": nodes})


def with_memory(cluster: Cluster, gib: float) -> Cluster:
    """Every device with so much memory, of which the margin stays free as before."""
    size = round(gib * 2**30)
    if size <= max(group.margin_bytes for group in cluster.nodes):
        raise BadInput(
            f"{gib:g} GiB leaves no memory beside the margin", where="memory_gib", allowed="more than it"
        )
    groups = tuple(group.model_copy(update={"memory_bytes": size}) for group in cluster.nodes)
    return _with(cluster, nodes=groups)


def with_nodes(cluster: Cluster, count: int) -> Cluster:
    """So many nodes of the only kind there is."""
    if len(cluster.nodes) != 1:
        raise BadInput(
            f"the cluster has {len(cluster.nodes)} kinds of node", where="nodes", allowed="a cluster with one"
        )
    if count < 1:
        raise BadInput(f"{count} nodes", where="nodes", allowed="1 or more")
    return _with(cluster, nodes=(cluster.nodes[0].model_copy(update={"count": count}),))


def with_network(cluster: Cluster, factor: float) -> Cluster:
    """Every link with so many times its bandwidth, and the latency that it has."""
    if not factor > 0:
        raise BadInput(f"{factor:g} times the bandwidth", where="network", allowed="more than 0")
    links = {
        name: Link(latency_s=link.latency_s, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        for name, link in cluster.links
        if link is not None
    }
    return _with(cluster, links=Links(**links))


def _with(cluster: Cluster, **changes: object) -> Cluster:
    """Made anew and checked again: a copy would carry along what was reckoned from the old fields."""
    fields = {name: getattr(cluster, name) for name in Cluster.model_fields}
    return Cluster.model_validate(fields | changes)


def with_at_most(cluster: Cluster, limit: int) -> Cluster:
    """The same machines, of whose devices a plan may use no more than `limit` bytes, their margin aside."""
    return _with_memory(cluster, lambda group: min(group.capacity_bytes, group.margin_bytes + limit))


def with_more(cluster: Cluster, more: int) -> Cluster:
    """The same machines with so many bytes more on each device."""
    return _with_memory(cluster, lambda group: group.capacity_bytes + more)


def _with_memory(cluster: Cluster, size: Callable[[NodeGroup], int]) -> Cluster:
    groups = tuple(group.model_copy(update={"memory_bytes": size(group)}) for group in cluster.nodes)
    return with_node_groups(cluster, groups)
