"""Ranks onto devices: the innermost axis of the mesh fills a node's slots first, then the next node's."""

from __future__ import annotations

from collections.abc import Sequence

from planner import cluster as machines
from planner.cluster import Cluster
from planner.errors import Infeasible
from planner.plan import Axes, Place, coordinates, world_size


def places(axes: Axes, cluster: Cluster, used_nodes: Sequence[int] | None = None) -> tuple[Place, ...]:
    """One place a rank, over the given nodes (all by default) in their order, as a launcher numbers its tasks."""
    needed = world_size(axes)
    found = [slot for slot, _ in zip(machines.slots(cluster, used_nodes), range(needed), strict=False)]
    if len(found) < needed:
        nodes = "its nodes" if used_nodes is None else f"{len(used_nodes)} of its nodes"
        raise Infeasible(
            f"{axes.data} x {axes.pipeline} x {axes.spatial} (data x pipeline x spatial) needs {needed} devices; "
            f"{nodes} in cluster '{cluster.name}' have {len(found)}"
        )
    return tuple(
        Place(rank=rank, node=slot.node, slot=slot.slot, **coordinates(axes, rank)._asdict())
        for rank, slot in enumerate(found)
    )
