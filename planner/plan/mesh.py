"""Maps the ranks of a plan: which data replica, worker and shard each one is, and on which device it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planner import cluster as clusters
from planner.cluster import Cluster
from planner.errors import Infeasible
from planner.plan.plan import Axes, Place


def places(axes: Axes, cluster: Cluster, used_nodes: Sequence[int] | None = None) -> tuple[Place, ...]:
    """Returns one place a rank, on the devices of the cluster in the order in which launchers number tasks.

    Args: `used_nodes` are the nodes to fill, in their order; None is for all.
    Raises: Infeasible where these nodes have too few devices.
    """
    needed = world_size(axes)
    found = [slot for slot, _ in zip(clusters.slots(cluster, used_nodes), range(needed), strict=False)]
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


class Coordinates(NamedTuple):
    """The place of a rank on the mesh: its number along each axis."""

    data: int
    pipeline: int
    spatial: int


def world_size(axes: Axes) -> int:
    """Returns the number of ranks.

    Args: `axes` are the degrees of the mesh.
    """
    return axes.data * axes.pipeline * axes.spatial


def coordinates(axes: Axes, rank: int) -> Coordinates:
    """Returns where a rank stands on the mesh; ranks count along the innermost axis first.

    Args: `rank` is from 0 to `world_size` - 1.
    """
    found = {}
    for axis in reversed(axes.order):
        rank, found[axis] = divmod(rank, getattr(axes, axis))
    return Coordinates(**found)


def rank_of(axes: Axes, at: Coordinates) -> int:
    """Returns the rank at some coordinates.

    Args: `at` is within the degrees of `axes`.
    """
    rank = 0
    for axis in axes.order:
        rank = rank * int(getattr(axes, axis)) + int(getattr(at, axis))
    return rank


def ranks_of_worker(axes: Axes, worker: int) -> tuple[int, ...]:
    """Returns every rank that plays one pipeline worker, in order: its data replicas and spatial shards.

    Args: `worker` is a number along the pipeline axis.
    """
    shards = [(data, spatial) for data in range(axes.data) for spatial in range(axes.spatial)]
    return tuple(sorted(rank_of(axes, Coordinates(data, worker, spatial)) for data, spatial in shards))
