"""Seconds that moving bytes between devices takes: transfers, and all-reduces over groups of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from planner.arrays import NS_PER_S, IntArray
from planner.cluster.cluster import Cluster, Link
from planner.cluster.corrections import Correction
from planner.cluster.places import Distance, Located, card, cards, distance, link_over
from planner.sums import SumLoad, SumRate, line_of, offered, parse, today


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

    places: int
    nodes: int
    far: Distance  # the farthest crossed between nodes
    fullest: int  # places of the node with most
    cards: int  # of the node whose places are behind fewest


def spread(cluster: Cluster, places: Iterable[Located]) -> Spread:
    """Returns how places lie on the nodes of a cluster.

    Args: a device among `places` counts once.
    """
    members = {(place.node, place.slot) for place in places}
    fullest = Counter(node for node, _ in members)
    far: Distance = "cluster" if len({cluster.racks[node] for node in fullest}) > 1 else "rack"
    return Spread(
        places=len(members),
        nodes=len(fullest),
        far=far,
        fullest=max(fullest.values(), default=0),
        cards=min(cards(cluster, members).values(), default=0),
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
    """Returns the seconds that an all-gather takes, or a reduce-scatter, by rings within nodes and between them.

    Args: `size_bytes` are of the whole tensor; `over` and `sharers` are those of `sum_s`.
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
    """
    ranks, seconds = over.nodes * over.fullest, 0.0
    each = size_bytes / max(ranks, 1) ** 2
    if over.fullest > 1:
        wire = link_over(cluster, "node")
        seconds += (over.fullest - 1) * (wire.latency_s + each / wire.bandwidth_bytes_per_s)
    if over.nodes > 1:
        wire = link_over(cluster, over.far)
        leaving = each * over.fullest * sharers / (over.cards * wire.bandwidth_bytes_per_s)
        seconds += (ranks - over.fullest) * (wire.latency_s + leaving)
    return _as_run(seconds, cluster.fitted.hop if cluster.fitted and seconds else None)


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
    """The time of an all-reduce over a set of places, as the least of some lines in the bytes."""

    base_ns: tuple[float, ...]
    slope_ns: tuple[float, ...]
    names: tuple[str, ...] = ()  # of each line's sum; empty where a run sums as it does by itself

    def ns(self, size: IntArray) -> IntArray:
        """Returns the nanoseconds that all-reduces of several sizes take, rounded up.

        Args: `size` has bytes; 0 bytes take no time.
        """
        least = np.minimum.reduce([base + size * slope for base, slope in self._lines])
        return np.where(size > 0, np.ceil(least - NOISE), 0).astype(np.int64)

    @property
    def _lines(self) -> list[tuple[float, float]]:
        return list(zip(self.base_ns, self.slope_ns, strict=True))

    def name(self, size: int) -> str:
        """Returns the name of the sum that takes least; "" where a run sums as it does by itself.

        Args: `size` is in bytes.
        """
        if not self.names:
            return ""
        times = [base + size * slope for base, slope in self._lines]
        return self.names[times.index(min(times))]

    def of_parts(self, ranks: int) -> Sum:
        """Returns the time of sums in which each rank has one part of the bytes.

        Args: `ranks` are as many as there are parts; 0 is of sums that need not be made.
        """
        if ranks == 0:
            return Sum(base_ns=(0.0,), slope_ns=(0.0,))
        return replace(self, slope_ns=tuple(slope / ranks for slope in self.slope_ns))


Summing = Literal["free", "itself", "direct", "ring"]  # by any name; as a run does by itself; by that name
_SMALL_BYTES, _LARGE_BYTES = 1, 1 << 42  # before and beyond where a ring overtakes trees


def all_reduce(cluster: Cluster, over: Spread, how: Summing, *, pinned: str = "", sharers: int = 1) -> Sum:
    """Returns the all-reduce over the places of a spread, as lines in the bytes.

    Args: `how` says which sums there are to choose from; where that is free, `pinned` is the only one. `sharers` is as
        in `sum_s`.
    Returns: the least of the sums that were measured. Without any it is the link's own, priced as `sum_s` does.
    """
    if over.places > 1 and pinned and how == "free":
        return named_sum(cluster, over, [pinned], sharers=sharers)
    known = measured_sums(cluster, over)
    if how != "free":
        own = str(today(over.places)) if how == "itself" else how
        known = (own,) if own in known else ()
    if not known:
        return _own_lines(cluster, over, sharers)
    found = named_sum(cluster, over, known, sharers=sharers)
    return found if how == "free" else replace(found, names=())


def _own_lines(cluster: Cluster, over: Spread, sharers: int) -> Sum:
    def seconds(size: int) -> float:
        return sum_s(cluster, over, size, sharers=sharers)

    def slope(size: int) -> float:
        return (seconds(2 * size) - seconds(size)) / size

    start, near, far = seconds(0), slope(_SMALL_BYTES), slope(_LARGE_BYTES)
    size = _SMALL_BYTES
    while size < _LARGE_BYTES and not math.isclose(slope(size), far, rel_tol=1e-7):
        size *= 4  # the smallest on the second line tells its start most exactly
    if size == _SMALL_BYTES:
        near, far_start = far, start
    else:
        far_start = seconds(size) - far * size
    return Sum(base_ns=(start * NS_PER_S, far_start * NS_PER_S), slope_ns=(near * NS_PER_S, far * NS_PER_S))


def measured_sums(cluster: Cluster, over: Spread) -> tuple[str, ...]:
    """Returns the sums that were measured over the link of a spread, and that its ranks may use.

    Returns: names as in the cluster file; none between GPUs, and where nothing was measured.
    """
    if over.places < 2 or not cluster.of_hosts:
        return ()
    known = _sum_link(cluster, over).sums
    return tuple(name for name in known if offered(parse(name), over.places, cluster.cards))


def named_sum(cluster: Cluster, over: Spread, names: Iterable[str], *, sharers: int = 1) -> Sum:
    """Returns the all-reduce over the places of a spread, as the least of some sums by name.

    Args: `names` are offered to these places; one that was not measured is priced by the link itself. `sharers` is as
        in `sum_s`.
    Returns: the lower envelope of all lines, corrected by runs where the cluster has corrections.
    """
    wire = _sum_link(cluster, over)
    far = over.nodes > 1
    load = SumLoad(
        places=over.places,
        behind=-(-over.fullest // over.cards) if far else 1,
        cards=cluster.cards,
    )
    fitted, found = cluster.fitted.sum if cluster.fitted else None, list[tuple[float, float, str]]()
    for name in names:
        plain = SumRate(latency_s=wire.latency_s, bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s)
        rate = wire.sums.get(name, plain)
        byte_s = (sharers if far else 1) / rate.bandwidth_bytes_per_s
        line = line_of(parse(name), load)
        start = _as_run(line.rounds * rate.latency_s, fitted)
        slope = line.bytes * byte_s * (fitted.factor if fitted else 1.0)
        found.append((start * NS_PER_S, slope * NS_PER_S, name))
    base, slopes, kept = zip(*_envelope(found), strict=True)
    return Sum(base_ns=base, slope_ns=slopes, names=kept)


def _sum_link(cluster: Cluster, over: Spread) -> Link:
    return link_over(cluster, over.far if over.nodes > 1 else "node")


def _envelope(found: Iterable[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Returns the lines that are the lowest somewhere, from small sums to large ones."""
    kept: list[tuple[float, float, str]] = []
    for base, slope, name in sorted(found):
        if kept and slope >= kept[-1][1]:
            continue
        while len(kept) > 1 and _crossing(kept[-2], (base, slope, name)) <= _crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append((base, slope, name))
    return kept


def _crossing(low: tuple[float, float, str], high: tuple[float, float, str]) -> float:
    """Returns the bytes from which on the second line, which starts no lower and is flatter, is the lower one."""
    return (high[0] - low[0]) / (low[1] - high[1])


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that share a sample: what a message between neighbours takes, and what a sum over all of them."""

    latency_ns: float
    byte_ns: float
    sum: Sum
