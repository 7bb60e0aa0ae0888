"""Where workers are placed, and the links between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from planner.arrays import NS_PER_S
from planner.cluster import Cluster, Link, Links, NodeGroup, Rates, card_sharers, transfer_s
from planner.configurations.configurations import OUTER_DATA, OUTER_PIPELINE, AxisName, Configuration
from planner.configurations.placement import PlacementCosts

PLAIN = Configuration(
    family="1f1b",
    data=1,
    workers=2,
    pairs=1,
    chunks=1,
    micro=1,
    micros=2,
    recompute=False,
    shard=False,
    axes=OUTER_DATA,
)


def machines(cards: int, slow: float = 1.0) -> Cluster:
    near, far, farthest = (
        Link(latency_s=latency, bandwidth_bytes_per_s=rate)
        for latency, rate in ((1e-7, 1e11), (1e-6, 1e10), (3e-6, 4e9))
    )
    groups = [
        NodeGroup(
            count=2,
            device="any",
            devices_per_node=4,
            devices_per_card=4 // cards,
            memory_bytes=1 << 30,
            rates=Rates(fp32_flop_per_s=rate),
            nodes_per_rack=1,
        )
        for rate in (1e12, slow * 1e12)
    ]
    return Cluster(name="cards", nodes=tuple(groups), links=Links(node=near, rack=far, cluster=farthest))


@pytest.mark.parametrize("axes", [OUTER_DATA, OUTER_PIPELINE])
@pytest.mark.parametrize("cards", [1, 2, 4])
def test_links_between_two_workers_are_the_slowest_of_their_replicas(
    cards: int, axes: tuple[AxisName, ...]
) -> None:
    cluster = machines(cards)
    costs = PlacementCosts(cluster)
    for data, workers in ((4, 4), (2, 8), (8, 2), (1, 16)):
        shape = replace(PLAIN, data=data, workers=workers, axes=axes)
        found = costs.placement(shape, "any")
        columns = [[row[w] for row in found.grid] for w in range(workers)]
        for a, b in permutations(range(workers), 2):
            pairs = list(zip(columns[a], columns[b], strict=True))
            many = card_sharers(cluster, pairs)
            for size, line in ((0, 0.0), (1 << 42, 1.0)):
                slowest = max(transfer_s(cluster, x, y, size, sharers=many) for x, y in pairs) * NS_PER_S
                ns = found.latency_ns[a, b] + line * size * found.byte_ns[a, b]
                assert ns == pytest.approx(slowest, rel=1e-9)


def test_devices_of_one_pace_are_known_without_a_placement() -> None:
    assert PlacementCosts(machines(1)).paces("any") == {1.0}
    assert PlacementCosts(machines(1, slow=0.5)).paces("any") == {1.0, 2.0}
