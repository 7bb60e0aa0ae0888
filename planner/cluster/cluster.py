"""The machines of a cluster as data: groups of nodes with their devices, and links by distance.

Nodes are numbered through all groups in order. Racks are filled group by group and never mix two groups. A device
is named by its node and its slot on the node; any value with these two attributes will do as a place. Bandwidths are
of one direction: between devices of one node for one device, between nodes for one network card, which the devices
behind it share.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from planner import files
from planner.cluster import catalogue
from planner.cluster.corrections import Corrections
from planner.errors import BadInput
from planner.files import Count, Natural, Part, Positive, Text
from planner.shown import Shown
from planner.sums import SumRate, parse

CLUSTER_VERSION: Final = 1

MOST_NODES: Final = 1_000_000
Nodes = Annotated[int, Field(ge=1, le=MOST_NODES, strict=True)]
Slots = Annotated[int, Field(ge=1, le=4096, strict=True)]  # devices of one node
Latency = Annotated[float, Field(ge=0, le=3600, strict=True)]  # of a message; an hour is no link
Bandwidth = Annotated[float, Field(ge=1, strict=True)]


class Link(Part):
    """A link between two devices."""

    latency_s: Latency
    bandwidth_bytes_per_s: Bandwidth
    sums: dict[str, SumRate] = Field(
        default_factory=dict,
        description="what sums between hosts showed, by name; without it they are priced by the link",
    )

    @model_validator(mode="after")
    def _check(self) -> Link:
        for name in self.sums:
            try:
                known = parse(name).kind != "nccl"
            except BadInput as error:
                raise files.wrong(error.what, allowed=error.allowed, key=("sums",)) from None
            if not known:
                raise files.wrong("NCCL has no other sums to choose from", key=("sums",))
        if lacking := {"ring", "direct"} - self.sums.keys() if self.sums else ():
            raise files.wrong(
                f"without {' and '.join(sorted(lacking))}",
                allowed="ring and direct, which all ranks may use, and any others",
                key=("sums",),
            )
        return self


class Card(Part):
    """A network card of a node."""

    interface: Text = Field(description="its name on the node, such as ib0")


class Links(Part):
    """The links by distance; a link that no two devices of the cluster need may be left out."""

    node: Link | None = Field(None, description="between devices of one node")
    rack: Link | None = Field(None, description="between nodes of one rack")
    cluster: Link | None = Field(None, description="between racks")

    @property
    def longest(self) -> Link | None:
        return self.cluster or self.rack or self.node


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
    cards: tuple[Card, ...] = Field(
        (), description="network cards over which parts of one sum may go; every device uses all of them"
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
        faces = [card.interface for card in self.cards]
        if len(set(faces)) < len(faces) or (faces and self.devices_per_card is not None):
            raise files.wrong(
                f"{', '.join(faces)}" + (" beside devices_per_card" if self.devices_per_card else ""),
                allowed="each interface once; devices_per_card is of cards that belong to their devices",
                key=("cards",),
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
        if len({group.cards for group in self.nodes}) > 1:
            raise files.wrong(
                "groups of nodes list other cards", allowed="the same interfaces on all nodes", key=("nodes",)
            )
        return self

    @property
    def interfaces(self) -> tuple[str, ...]:
        """Returns the interfaces of the network cards that parts of one sum may go over, as the nodes list them."""
        return tuple(card.interface for card in self.nodes[0].cards)

    @property
    def cards(self) -> int:
        """Returns how many network cards of a node one sum may go over."""
        return max(1, len(self.nodes[0].cards))

    @property
    def of_hosts(self) -> bool:
        """Returns whether ranks compute on hosts, where gloo sums; groups of GPUs leave their sums to NCCL."""
        return all(group.device == "cpu" for group in self.nodes)

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
