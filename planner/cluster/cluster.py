"""The machines of a cluster as data: groups of nodes with their devices, and links by distance.

Nodes are numbered through all groups in order. Racks are filled group by group and never mix two groups. A device
is named by its node and its slot on the node; any value with these two attributes will do as a place. Bandwidths are
of one direction: between devices of one node for one device, between nodes for one network card, which the devices
behind it share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Protocol

from pydantic import Field, model_validator

from planner import files
from planner.cluster import catalogue
from planner.cluster.corrections import Corrections
from planner.errors import BadInput
from planner.files import Count, Natural, Part, Positive, Text
from planner.shown import Shown

CLUSTER_VERSION: Final = 1

MOST_NODES: Final = 1_000_000
Nodes = Annotated[int, Field(ge=1, le=MOST_NODES, strict=True)]
Slots = Annotated[int, Field(ge=1, le=4096, strict=True)]  # devices of one node
Latency = Annotated[float, Field(ge=0, le=3600, strict=True)]  # of a message; an hour is no link
Bandwidth = Annotated[float, Field(ge=1, strict=True)]
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


class Link(Part):
    """A link between two devices."""

    latency_s: Latency
    bandwidth_bytes_per_s: Bandwidth


class Links(Part):
    """The links by distance; a link that no two devices of the cluster need may be left out."""

    node: Link | None = Field(None, description="between devices of one node")
    rack: Link | None = Field(None, description="between nodes of one rack")
    cluster: Link | None = Field(None, description="between racks")


class Rates(Part):
    """Peaks of one device, where they differ from the catalogue's or the catalogue does not know the device."""

    fp32_flop_per_s: Positive | None = None
    fp16_flop_per_s: Positive | None = None
    bf16_flop_per_s: Positive | None = None
    memory_bytes_per_s: Positive | None = None


class NodeGroup(Part):
    """Nodes that are alike."""

    count: Nodes = Field(description="number of nodes")
    device: Text = Field(description="a name of the catalogue, or any other with its memory_bytes")
    devices_per_node: Slots
    memory_bytes: Count | None = Field(None, description="of one device; the catalogue's when left out")
    margin_bytes: Natural = Field(
        0, description="of a device's memory, kept free: driver, libraries, fragments"
    )
    devices_per_card: Count | None = Field(
        None, description="devices behind one network card; one card a node when left out"
    )
    nodes_per_rack: Count | None = Field(None, description="all in one rack when left out")
    rates: Rates = Rates()

    @model_validator(mode="before")
    @classmethod
    def _of_a_host(cls, given: object) -> object:
        return catalogue.with_host_margin(given)

    @model_validator(mode="after")
    def _check(self) -> NodeGroup:
        known = catalogue.CATALOGUE.get(self.device)
        if self.memory_bytes is None and known is None:
            names = ", ".join(catalogue.CATALOGUE)
            raise files.wrong(
                f"unknown device '{self.device}'",
                allowed=f"{names}; any other with its memory_bytes",
                key=("device",),
            )
        if self.margin_bytes >= self.capacity_bytes:
            raise files.wrong(
                f"{self.margin_bytes} leaves no memory",
                allowed=f"less than {self.capacity_bytes}",
                key=("margin_bytes",),
            )
        if self.devices_per_card is not None and self.devices_per_card > self.devices_per_node:
            raise files.wrong(
                f"{self.devices_per_card} is more than a node has",
                allowed=f"1 to {self.devices_per_node}",
                key=("devices_per_card",),
            )
        return self

    @property
    def capacity_bytes(self) -> int:
        """Returns the memory of one device in bytes, the margin included."""
        return self.memory_bytes or catalogue.CATALOGUE[self.device].memory_bytes

    @property
    def limit_bytes(self) -> int:
        """Returns the bytes that a plan may use of one device: its memory less the margin."""
        return self.capacity_bytes - self.margin_bytes


class Cluster(Shown, Part):
    """The machines: groups of nodes, and links by distance."""

    version: Literal[1] = CLUSTER_VERSION
    name: Text
    nodes: tuple[NodeGroup, ...] = Field(min_length=1)
    links: Links
    fitted: Corrections | None = Field(
        None, description="from `shardwright calibrate`: what runs showed beside it"
    )

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        if (all_nodes := sum(group.count for group in self.nodes)) > MOST_NODES:
            raise files.wrong(f"{all_nodes} nodes", allowed=f"at most {MOST_NODES} in all", key=("nodes",))
        for distance in sorted(_distances(self)):
            if getattr(self.links, distance) is None:
                raise files.wrong(
                    f"missing key '{distance}', over which devices of this cluster talk",
                    allowed="latency_s and bandwidth_bytes_per_s for it",
                    key=("links",),
                )
        return self

    @cached_property
    def racks(self) -> tuple[int, ...]:
        """Returns the rack of every node."""
        found: list[int] = []
        for group in self.nodes:
            first = found[-1] + 1 if found else 0
            size = group.nodes_per_rack or group.count
            found += [first + i // size for i in range(group.count)]
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Returns the group of every node."""
        return tuple(group for group in self.nodes for _ in range(group.count))

    @classmethod
    def load(cls, path: Path | str) -> Cluster:
        """Returns the cluster that a file holds.

        Args: `path` is a YAML file of version 1, or the name of a cluster that comes along, such as h100x8.
        Raises: BadInput with file, line and key.
        """
        return load(path)

    def to_rows(self) -> list[dict[str, object]]:
        """Returns one row for each group of nodes; `plan_bytes` is what a plan may use of one device."""
        return [
            {
                "nodes": group.count,
                "devices_per_node": group.devices_per_node,
                "device": group.device,
                "plan_bytes": group.limit_bytes,
            }
            for group in self.nodes
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns the cluster as plain data with the keys of its file."""
        return self.model_dump(mode="json")


def _distances(cluster: Cluster) -> set[str]:
    """Returns the distances at which two devices of the cluster may lie, without that of a device to itself."""
    racks = Counter(cluster.racks)
    return {
        name
        for name, needed in (
            ("node", any(group.devices_per_node > 1 for group in cluster.nodes)),
            ("rack", max(racks.values()) > 1),
            ("cluster", len(racks) > 1),
        )
        if needed
    }


def load(path: Path | str) -> Cluster:
    """Returns the cluster that a file holds.

    Args: `path` is a YAML file of version 1, or a name such as h100x8; BadInput is raised with file, line and key.
    """
    return files.load(Cluster, catalogue.cluster_file(Path(path)), version=CLUSTER_VERSION)


def dump(cluster: Cluster) -> str:
    """Returns a cluster as the YAML text of a file.

    Returns: text without what has its default value; `load` reads it back as an equal cluster.
    """
    data = cluster.model_dump(mode="json", exclude_defaults=True)
    header = "# yaml-language-server: $schema=cluster.schema.json\n"
    return files.render({"version": cluster.version, **data}, header=header)


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
