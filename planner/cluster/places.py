"""The places of a cluster: devices by node and slot, what lies there, and how far two of them are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

from planner.cluster.cluster import Cluster, Link, NodeGroup
from planner.errors import BadInput

Distance = Literal["device", "node", "rack", "cluster"]


class Located(Protocol):
    """Anything that stands on a device: a Slot, or a place of a plan."""

    @property
    def node(self) -> int: ...
    @property
    def slot(self) -> int: ...


class Slot(NamedTuple):
    """A device by its node, and by its position on the node."""

    node: int
    slot: int


def slots(cluster: Cluster, nodes: Iterable[int] | None = None) -> Iterator[Slot]:
    """Yields every device of the given nodes in their order.

    Args: `nodes` are numbers of nodes; all where they are not given.
    """
    for node in range(len(cluster.groups)) if nodes is None else nodes:
        yield from (Slot(node, slot) for slot in range(group_of(cluster, node).devices_per_node))


def total_devices(cluster: Cluster) -> int:
    """Returns the number of devices of all nodes."""
    return sum(group.count * group.devices_per_node for group in cluster.nodes)


def exists(cluster: Cluster, place: Located) -> bool:
    """Returns whether the cluster has a device at a place.

    Args: `place` has a node and a slot, both from 0.
    """
    node, slot = place.node, place.slot
    return 0 <= node < len(cluster.groups) and 0 <= slot < cluster.groups[node].devices_per_node


def group_of(cluster: Cluster, node: int) -> NodeGroup:
    """Returns the group that a node belongs to.

    Raises: BadInput where there is no such node.
    """
    if not 0 <= node < len(cluster.groups):
        raise BadInput(
            f"there is no node {node}", where=cluster.name, allowed=f"0 to {len(cluster.groups) - 1}"
        )
    return cluster.groups[node]


def limit_bytes(cluster: Cluster, place: Located) -> int:
    """Returns the memory of the device at a place in bytes, less the margin.

    Raises: BadInput where there is no such node.
    """
    return group_of(cluster, place.node).limit_bytes


def card(cluster: Cluster, place: Located) -> int:
    """Returns which network card of its node a device is behind.

    Returns: the card's number on the node, from 0.
    """
    return place.slot // ((group := group_of(cluster, place.node)).devices_per_card or group.devices_per_node)


def cards(cluster: Cluster, places: Iterable[tuple[int, int]]) -> Counter[int]:
    """Returns how many network cards of each node some devices are behind.

    Args: `places` are pairs of a node and a slot.
    """
    members = set(places)
    groups = {node: group_of(cluster, node) for node, _ in members}
    behind = {node: group.devices_per_card or group.devices_per_node for node, group in groups.items()}
    return Counter(node for node, _ in {(node, slot // behind[node]) for node, slot in members})


def distance(cluster: Cluster, a: Located, b: Located) -> Distance:
    """Returns the distance between two places.

    Returns: "device" for the same device, "node" or "rack" for devices that share one, else "cluster".
    """
    if a.node == b.node:
        return "device" if a.slot == b.slot else "node"
    return "rack" if cluster.racks[a.node] == cluster.racks[b.node] else "cluster"


def link_over(cluster: Cluster, far: Distance) -> Link:
    """Returns the link over a distance.

    Raises: BadInput where the cluster has none, and for the distance "device".
    """
    found: Link | None = getattr(cluster.links, far, None)
    if found is None:
        raise BadInput(
            f"no link over the distance '{far}'", where=cluster.name, allowed="node, rack, cluster"
        )
    return found
