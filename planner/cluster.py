"""The machines: groups of nodes with their devices, and links by distance.

Nodes are numbered through all groups in order. Racks are filled group by group and never mix two groups. A device
is named by its node and its slot on the node; anything with these two attributes will do as a place. Bandwidths are
of one direction: between devices of one node for one device, between nodes for one network card, which the devices
behind it share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Protocol

from pydantic import Field, model_validator

from planner import devices, form, yaml_files
from planner.errors import BadInput
from planner.fitted import Correction, Fitted
from planner.form import Count, Natural, Part, Positive, Text

CLUSTER_VERSION: Final = 1

Nodes = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
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
    node: int
    slot: int


class Link(Part):
    latency_s: Latency
    bandwidth_bytes_per_s: Bandwidth


class Links(Part):
    """By distance; one that no two devices of the cluster need may be left out."""

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
    devices_per_node: Count
    memory_bytes: Count | None = Field(None, description="of one device; the catalogue's when left out")
    margin_bytes: Natural = Field(
        0, description="of a device's memory, kept free: driver, libraries, fragments"
    )
    devices_per_card: Count | None = Field(
        None, description="devices behind one network card; one card a node when left out"
    )
    nodes_per_rack: Count | None = Field(None, description="all in one rack when left out")
    rates: Rates = Rates()

    @model_validator(mode="after")
    def _check(self) -> NodeGroup:
        known = devices.CATALOGUE.get(self.device)
        if self.memory_bytes is None and known is None:
            names = ", ".join(devices.CATALOGUE)
            raise form.wrong(
                f"unknown device '{self.device}'",
                allowed=f"{names}; any other with its memory_bytes",
                key=("device",),
            )
        if self.margin_bytes >= self.capacity_bytes:
            raise form.wrong(
                f"{self.margin_bytes} leaves no memory",
                allowed=f"less than {self.capacity_bytes}",
                key=("margin_bytes",),
            )
        if self.devices_per_card is not None and self.devices_per_card > self.devices_per_node:
            raise form.wrong(
                f"{self.devices_per_card} is more than a node has",
                allowed=f"1 to {self.devices_per_node}",
                key=("devices_per_card",),
            )
        return self

    @property
    def capacity_bytes(self) -> int:
        return self.memory_bytes or devices.CATALOGUE[self.device].memory_bytes

    @property
    def limit_bytes(self) -> int:
        """What a plan may use of one device."""
        return self.capacity_bytes - self.margin_bytes


class Cluster(Part):
    version: Literal[1] = CLUSTER_VERSION
    name: Text
    nodes: tuple[NodeGroup, ...] = Field(min_length=1)
    links: Links
    fitted: Fitted | None = Field(
        None, description="from `shardwright calibrate`: what runs showed beside it"
    )

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        for distance in sorted(_distances(self)):
            if getattr(self.links, distance) is None:
                raise form.wrong(
                    f"missing key '{distance}', over which devices of this cluster talk",
                    allowed="latency_s and bandwidth_bytes_per_s for it",
                    key=("links",),
                )
        return self

    @cached_property
    def racks(self) -> tuple[int, ...]:
        """The rack of every node."""
        found: list[int] = []
        for group in self.nodes:
            first = found[-1] + 1 if found else 0
            size = group.nodes_per_rack or group.count
            found += [first + i // size for i in range(group.count)]
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """The group of every node."""
        return tuple(group for group in self.nodes for _ in range(group.count))

    @classmethod
    def load(cls, path: Path | str) -> Cluster:
        return load(path)

    def __repr__(self) -> str:
        from planner import summary

        return summary.of_cluster(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from planner.notebook import shows

        return shows.cluster_html(self)

    def to_rows(self) -> list[dict[str, object]]:
        """A group of nodes a row."""
        from planner.notebook import shows

        return shows.cluster_rows(self)

    def to_dict(self) -> dict[str, object]:
        return self.model_dump(mode="json")


def _distances(cluster: Cluster) -> set[str]:
    """The distances at which two devices of the cluster may lie, but for the same device."""
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


def with_nodes(cluster: Cluster, nodes: tuple[NodeGroup, ...]) -> Cluster:
    """The same links, other machines; ValueError where these need a link that is not told."""
    fields = {name: getattr(cluster, name) for name in Cluster.model_fields}
    return Cluster.model_validate({**fields, "nodes": nodes})


def load(path: Path | str) -> Cluster:
    return form.load(Cluster, Path(path), version=CLUSTER_VERSION)


def parse(text: str, *, name: str = "cluster") -> Cluster:
    return form.read(Cluster, text, name=name, version=CLUSTER_VERSION)


def dump(cluster: Cluster) -> str:
    data = cluster.model_dump(mode="json", exclude_defaults=True)
    header = "# yaml-language-server: $schema=cluster.schema.json\n"
    return yaml_files.render({"version": cluster.version, **data}, header=header)


def slots(cluster: Cluster, nodes: Iterable[int] | None = None) -> Iterator[Slot]:
    """Every device of the given nodes (all by default), in their order."""
    for node in range(len(cluster.groups)) if nodes is None else nodes:
        yield from (Slot(node, slot) for slot in range(group_of(cluster, node).devices_per_node))


def total_devices(cluster: Cluster) -> int:
    return sum(group.count * group.devices_per_node for group in cluster.nodes)


def exists(cluster: Cluster, place: Located) -> bool:
    return (
        0 <= place.node < len(cluster.groups)
        and 0 <= place.slot < cluster.groups[place.node].devices_per_node
    )


def group_of(cluster: Cluster, node: int) -> NodeGroup:
    if not 0 <= node < len(cluster.groups):
        raise BadInput(
            f"there is no node {node}", where=cluster.name, allowed=f"0 to {len(cluster.groups) - 1}"
        )
    return cluster.groups[node]


def device(cluster: Cluster, place: Located) -> str:
    return group_of(cluster, place.node).device


def limit_bytes(cluster: Cluster, place: Located) -> int:
    """Memory of the device at a place, less the margin."""
    return group_of(cluster, place.node).limit_bytes


def card(cluster: Cluster, place: Located) -> int:
    """The network card of its node that a device is behind."""
    group = group_of(cluster, place.node)
    return place.slot // (group.devices_per_card or group.devices_per_node)


def distance(cluster: Cluster, a: Located, b: Located) -> Distance:
    if a.node == b.node:
        return "device" if a.slot == b.slot else "node"
    return "rack" if cluster.racks[a.node] == cluster.racks[b.node] else "cluster"


def link(cluster: Cluster, a: Located, b: Located) -> Link:
    return link_over(cluster, distance(cluster, a, b))


def link_over(cluster: Cluster, far: Distance) -> Link:
    found = {"node": cluster.links.node, "rack": cluster.links.rack, "cluster": cluster.links.cluster}.get(
        far
    )
    if found is None:
        raise BadInput(
            f"no link over the distance '{far}'", where=cluster.name, allowed="node, rack, cluster"
        )
    return found


def transfer_s(cluster: Cluster, a: Located, b: Located, size_bytes: int, *, sharers: int = 1) -> float:
    """latency + bytes / bandwidth, the bandwidth divided among `sharers` where it goes through a network card; as
    corrected by runs where the cluster has that."""
    far = distance(cluster, a, b)
    if far == "device":
        return 0.0
    wire = link_over(cluster, far)
    plain = wire.latency_s + size_bytes * (1 if far == "node" else sharers) / wire.bandwidth_bytes_per_s
    return _as_run(plain, cluster.fitted.hop if cluster.fitted else None)


def all_reduce_s(cluster: Cluster, places: Iterable[Located], size_bytes: int, *, sharers: int = 1) -> float:
    """Time to sum `size_bytes` over a set of places, every one of them ending with the sum.

    In two levels. Within a node, among the m places of the fullest one, a ring scatters and later gathers:
    2 (m - 1) (latency + V / (m bandwidth)). Between the k nodes, the V bytes go through the c network cards that the
    places of a node have (c of the node with fewest), as a ring or as a pair of trees, whichever is faster:
    min(2 (k - 1) latency + 2 (k - 1) / k U, 2 ceil(log2 k) latency + 2 U), with U = sharers V / (c bandwidth) and the
    link of the farthest distance crossed. `sharers` is how many such sums go through one card at the same time:
    `card_sharers` counts them.
    """
    return sum_s(cluster, spread(cluster, places), size_bytes, sharers=sharers)


class Spread(NamedTuple):
    """What the time of an all-reduce over a set of places depends on."""

    nodes: int
    far: Distance  # the farthest crossed between nodes
    fullest: int  # places of the node with most
    cards: int  # of the node whose places are behind fewest


def spread(cluster: Cluster, places: Iterable[Located]) -> Spread:
    members = {Slot(place.node, place.slot) for place in places}
    fullest = Counter(place.node for place in members)
    cards = Counter(node for node, _ in {(place.node, card(cluster, place)) for place in members})
    far: Distance = "cluster" if len({cluster.racks[node] for node in fullest}) > 1 else "rack"
    return Spread(
        nodes=len(fullest),
        far=far,
        fullest=max(fullest.values(), default=0),
        cards=min(cards.values(), default=0),
    )


def sum_s(cluster: Cluster, over: Spread, size_bytes: int, *, sharers: int = 1) -> float:
    """`all_reduce_s` of places that lie so."""
    if over.nodes < 2 and over.fullest < 2:
        return 0.0
    within = _within_s(cluster, over.fullest, size_bytes)
    between = _between_s(cluster, over, size_bytes * sharers)
    return _as_run(within + between, cluster.fitted.sum if cluster.fitted else None)


def _as_run(plain_s: float, correction: Correction | None) -> float:
    return plain_s if correction is None else correction.seconds(plain_s)


def _within_s(cluster: Cluster, members: int, size_bytes: int) -> float:
    if members < 2:
        return 0.0
    wire = link_over(cluster, "node")
    return 2 * (members - 1) * (wire.latency_s + size_bytes / members / wire.bandwidth_bytes_per_s)


def _between_s(cluster: Cluster, over: Spread, size_bytes: int) -> float:
    count = over.nodes
    if count < 2:
        return 0.0
    wire = link_over(cluster, over.far)
    stream_s = size_bytes / (over.cards * wire.bandwidth_bytes_per_s)
    ring = 2 * (count - 1) * (wire.latency_s + stream_s / count)
    trees = 2 * math.ceil(math.log2(count)) * wire.latency_s + 2 * stream_s
    return min(ring, trees)


def card_sharers(cluster: Cluster, groups: Iterable[Collection[Located]]) -> int:
    """The most groups that leave one node through one network card; at least 1."""
    load: Counter[tuple[int, int]] = Counter()
    for group in groups:
        if len({place.node for place in group}) > 1:
            load.update({(place.node, card(cluster, place)) for place in group})
    return max(load.values(), default=1)
