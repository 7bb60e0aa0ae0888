"""Seconds that moving bytes between devices takes: transfers, and all-reduces over groups of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.cluster.cluster import Cluster, Distance, Located, Slot, card, distance, link_over
from planner.cluster.corrections import Correction


def transfer_s(cluster: Cluster, a: Located, b: Located, size_bytes: int, *, sharers: int = 1) -> float:
    """Returns the seconds that a transfer takes: latency + bytes / bandwidth.

    Args: `sharers` counts the transfers that go through one network card at the same time and share its bandwidth.
    Returns: seconds, corrected by runs where the cluster has corrections; 0 from a device to itself.
    """
    far = distance(cluster, a, b)
    if far == "device":
        return 0.0
    wire = link_over(cluster, far)
    plain = wire.latency_s + size_bytes * (1 if far == "node" else sharers) / wire.bandwidth_bytes_per_s
    return _as_run(plain, cluster.fitted.hop if cluster.fitted else None)


class Spread(NamedTuple):
    """All that the time of an all-reduce over a set of places depends on."""

    nodes: int
    far: Distance  # the farthest crossed between nodes
    fullest: int  # places of the node with most
    cards: int  # of the node whose places are behind fewest


def spread(cluster: Cluster, places: Iterable[Located]) -> Spread:
    """Returns how places lie on the nodes of a cluster.

    Args: a device among `places` counts once.
    """
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
    """Returns the seconds that an all-reduce of `size_bytes` takes over the places of a spread.

    Args: `sharers` counts the all-reduces that go through one network card at the same time, see `card_sharers`.
    Returns: seconds, corrected by runs where the cluster has corrections; 0 for a single place.

    An all-reduce of V bytes has two levels. Within a node, a ring scatters and later gathers among the m places of the
    fullest node:

        2 (m - 1) (latency + V / (m bandwidth))

    Between the k nodes, the bytes go through c network cards, those of the node with fewest. The link is that of the
    farthest distance crossed. The faster of a ring and a pair of trees counts, with U = sharers V / (c bandwidth):

        min(2 (k - 1) latency + 2 (k - 1) / k U, 2 ceil(log2 k) latency + 2 U)
    """
    if over.nodes < 2 and over.fullest < 2:
        return 0.0
    within = _within_s(cluster, over.fullest, size_bytes)
    between = _between_s(cluster, over, size_bytes * sharers)
    return _as_run(within + between, cluster.fitted.sum if cluster.fitted else None)


def gather_s(cluster: Cluster, over: Spread, size_bytes: float, *, sharers: int = 1) -> float:
    """Returns the seconds that an all-gather takes, or a reduce-scatter, which sends the same the other way.

    Args: `size_bytes` are of the whole tensor; `over` and `sharers` are those of `sum_s`.
    Returns: seconds, corrected as all-reduces are; 0 for a single place. A ring is taken within nodes and between them.
    """
    if over.nodes < 2 and over.fullest < 2:
        return 0.0
    seconds = _within_s(cluster, over.fullest, size_bytes) / 2
    if over.nodes > 1:
        wire = link_over(cluster, over.far)
        stream_s = size_bytes * sharers / (over.cards * wire.bandwidth_bytes_per_s)
        seconds += (over.nodes - 1) * (wire.latency_s + stream_s / over.nodes)
    return _as_run(seconds, cluster.fitted.sum if cluster.fitted else None)


def exchange_s(cluster: Cluster, over: Spread, size_bytes: float, *, sharers: int = 1) -> float:
    """Returns the seconds that an all-to-all takes, in which each rank sends every other one its part of a part.

    Args: `size_bytes` are of the whole tensor; `over` and `sharers` are those of `sum_s`.
    Returns: seconds, corrected as transfers are; 0 for a single place. Each node has as many ranks as the fullest.
    """
    ranks = over.nodes * over.fullest
    if ranks < 2:
        return 0.0
    each, seconds = size_bytes / ranks**2, 0.0
    if over.fullest > 1:
        wire = link_over(cluster, "node")
        seconds += (over.fullest - 1) * (wire.latency_s + each / wire.bandwidth_bytes_per_s)
    if over.nodes > 1:
        wire, others = link_over(cluster, over.far), ranks - over.fullest
        leaving = each * over.fullest * sharers / (over.cards * wire.bandwidth_bytes_per_s)
        seconds += others * (wire.latency_s + leaving)
    return _as_run(seconds, cluster.fitted.hop if cluster.fitted else None)


def _as_run(plain_s: float, correction: Correction | None) -> float:
    return plain_s if correction is None else correction.seconds(plain_s)


def _within_s(cluster: Cluster, members: int, size_bytes: float) -> float:
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
    """Returns the most groups that leave one node through one network card at the same time; at least 1.

    Args: `groups` are the places of each all-reduce.
    """
    load: Counter[tuple[int, int]] = Counter()
    for group in groups:
        if len({place.node for place in group}) > 1:
            load.update({(place.node, card(cluster, place)) for place in group})
    return max(load.values(), default=1)


NOISE = 1e-6  # of a nanosecond: what doubles may be off by before a time is rounded up


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The time of an all-reduce over a set of places, as the least of two lines in the bytes."""

    base_ns: tuple[float, float]
    slope_ns: tuple[float, float]

    def ns(self, size: IntArray) -> IntArray:
        """Returns the nanoseconds that all-reduces of several sizes take, rounded up.

        Args: `size` has bytes; 0 bytes take no time.
        """
        lines = [base + size * slope for base, slope in zip(self.base_ns, self.slope_ns, strict=True)]
        return np.where(size > 0, np.ceil(np.minimum(*lines) - NOISE), 0).astype(np.int64)

    def of_parts(self, ranks: int) -> Sum:
        """Returns the time of sums in which each rank has one part of the bytes.

        Args: `ranks` are as many as there are parts; 0 is of sums that need not be made.
        """
        base, slope = self.base_ns, self.slope_ns
        if ranks == 0:
            return Sum(base_ns=(0.0, 0.0), slope_ns=(0.0, 0.0))
        return Sum(base_ns=base, slope_ns=(slope[0] / ranks, slope[1] / ranks))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that share a sample: what a message between neighbours takes, and what a sum over all of them."""

    latency_ns: float
    byte_ns: float
    sum: Sum
