"""Machines as data: who is how far from whom, what their links carry, and how long a sum takes over them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.reference import schemas
from planner import cluster as machines
from planner.cluster import (
    HOST_PROCESS_BYTES,
    Cluster,
    Link,
    Links,
    NodeGroup,
    Slot,
    host_margin,
    links,
    places,
    with_nodes,
)
from planner.errors import BadInput
from planner.files import yaml_text as yaml_files
from tests.planner.plan_examples import parse_cluster

PLANS = Path(__file__).parents[3] / "plans"
FILES = sorted((PLANS / "clusters").glob("*.yaml"))
NEAR = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e11)
RACK = Link(latency_s=2e-6, bandwidth_bytes_per_s=2e10)
FAR = Link(latency_s=5e-6, bandwidth_bytes_per_s=1e10)


def two_racks(devices_per_card: int | None = None) -> Cluster:
    """Nodes 0 to 3 of two V100 in two racks, and nodes 4 and 5 of one P100."""
    return Cluster(
        name="two racks",
        nodes=(
            NodeGroup(
                count=4,
                device="V100-16GB",
                devices_per_node=2,
                nodes_per_rack=2,
                devices_per_card=devices_per_card,
            ),
            NodeGroup(count=2, device="P100-16GB", devices_per_node=1, margin_bytes=10**9),
        ),
        links=Links(node=NEAR, rack=RACK, cluster=FAR),
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_loads_and_fits_the_schema(path: Path) -> None:
    loaded = Cluster.load(path)
    assert loaded.name == path.stem
    schema = json.loads((PLANS / "cluster.schema.json").read_text())
    jsonschema.validate(yaml_files.parse_yaml(path.read_text(), name=path.name), schema)
    assert parse_cluster(machines.dump(loaded)) == loaded


def test_the_examples_are_as_large_as_they_say() -> None:
    sizes = {path.stem: machines.total_devices(Cluster.load(path)) for path in FILES}
    ours = {"laptop": 2, "one-node": 8, "sixteen-nodes": 128, "piz-daint": 2048, "mixed": 48}
    assert sizes == ours | {name: int(name.rpartition("x")[2]) for name in sizes.keys() - ours}


@pytest.mark.parametrize("name", schemas.MODELS)
def test_the_schemas_are_in_step_with_the_code(name: str) -> None:
    committed = (PLANS / name).read_text()
    assert json.loads(committed) == json.loads(schemas.text(schemas.MODELS[name])), (
        f"plans/{name} is out of step: renew it with `python -m docs.reference.schemas`"
    )


def test_distance_is_by_node_and_rack() -> None:
    cluster = two_racks()
    origin = Slot(0, 0)
    assert [
        machines.distance(cluster, origin, Slot(*at)) for at in ((0, 0), (0, 1), (1, 0), (2, 0), (4, 0))
    ] == [
        "device",
        "node",
        "rack",
        "cluster",
        "cluster",
    ]
    assert machines.distance(cluster, Slot(4, 0), Slot(5, 0)) == "rack"
    assert places.link_over(cluster, machines.distance(cluster, origin, Slot(3, 1))) == FAR
    with pytest.raises(BadInput, match="no link over the distance 'device'"):
        places.link_over(cluster, "device")


def test_distance_is_symmetric_and_groups_do_not_share_a_rack() -> None:
    cluster = two_racks()
    for a, b in product(machines.slots(cluster), repeat=2):
        assert machines.distance(cluster, a, b) == machines.distance(cluster, b, a)
    assert cluster.racks == (0, 0, 1, 1, 2, 2)


def test_devices_are_found_by_node_and_slot() -> None:
    cluster = two_racks()
    assert machines.total_devices(cluster) == len(list(machines.slots(cluster))) == 10
    assert places.group_of(cluster, 3).device == "V100-16GB"
    assert places.group_of(cluster, 4).device == "P100-16GB"
    assert list(machines.slots(cluster, [4, 0])) == [Slot(4, 0), Slot(0, 0), Slot(0, 1)]
    assert machines.exists(cluster, Slot(3, 1))
    assert not any(machines.exists(cluster, Slot(*at)) for at in ((4, 1), (6, 0), (-1, 0), (0, -1)))
    with pytest.raises(BadInput, match=r"there is no node 6 \(allowed: 0 to 5\)"):
        places.group_of(cluster, 6)


def test_memory_is_the_catalogues_or_the_files_less_the_margin() -> None:
    cluster = two_racks()
    assert machines.limit_bytes(cluster, Slot(0, 0)) == 16 * 10**9
    assert machines.limit_bytes(cluster, Slot(4, 0)) == 15 * 10**9
    own = NodeGroup(count=1, device="home-made", devices_per_node=1, memory_bytes=1000, margin_bytes=10)
    assert own.limit_bytes == 990


def test_a_transfer_pays_latency_and_shares_a_card_only_between_nodes() -> None:
    cluster = two_racks()
    assert links.transfer_s(cluster, Slot(0, 0), Slot(0, 0), 10**9) == 0
    near = links.transfer_s(cluster, Slot(0, 0), Slot(0, 1), 10**9, sharers=4)
    assert near == pytest.approx(1e-6 + 1e9 / 1e11)
    shared = links.transfer_s(cluster, Slot(0, 0), Slot(1, 0), 10**9, sharers=4)
    assert shared == pytest.approx(2e-6 + 4e9 / 2e10)


def _all_reduce_s(cluster: Cluster, places: Iterable[Slot], size: int, *, sharers: int = 1) -> float:
    return links.sum_s(cluster, links.spread(cluster, places), size, sharers=sharers)


def test_a_sum_within_a_node_is_a_ring() -> None:
    pair = [Slot(0, 0), Slot(0, 1)]
    assert _all_reduce_s(two_racks(), pair, 10**9) == pytest.approx(2 * (1e-6 + 0.5e9 / 1e11))


def test_a_sum_between_nodes_takes_the_farthest_link() -> None:
    cluster = two_racks()
    racks = [Slot(0, 0), Slot(2, 0)]
    assert _all_reduce_s(cluster, racks, 10**9) == pytest.approx(2 * (5e-6 + 0.5e9 / 1e10))
    rack = [Slot(0, 0), Slot(1, 0)]
    assert _all_reduce_s(cluster, rack, 10**9) == pytest.approx(2 * (2e-6 + 0.5e9 / 2e10))


def test_small_sums_over_many_nodes_go_by_trees_and_large_ones_by_a_ring() -> None:
    cluster = Cluster.load(PLANS / "clusters/piz-daint.yaml")
    everyone = list(machines.slots(cluster))
    wire = places.link_over(cluster, "cluster")
    small = _all_reduce_s(cluster, everyone, 1000)
    assert small == pytest.approx(2 * 11 * wire.latency_s + 2 * 1000 / wire.bandwidth_bytes_per_s)
    large = _all_reduce_s(cluster, everyone, 10**12)
    ring = 2 * 2047 * (wire.latency_s + 10**12 / 2048 / wire.bandwidth_bytes_per_s)
    assert large == pytest.approx(ring)


def test_more_cards_carry_a_sum_faster() -> None:
    places = list(machines.slots(two_racks(), range(4)))
    one_card, two_cards = (_all_reduce_s(two_racks(n), places, 10**9) for n in (2, 1))
    within = 2 * (1e-6 + 0.5e9 / 1e11)
    assert one_card - within == pytest.approx(2 * (two_cards - within), rel=1e-3)


def test_sums_that_leave_a_node_by_the_same_card_are_counted() -> None:
    straight = [[Slot(0, 0), Slot(1, 0)], [Slot(0, 1), Slot(1, 1)]]
    assert links.card_sharers(two_racks(), straight) == 2
    assert links.card_sharers(two_racks(devices_per_card=1), straight) == 1
    assert links.card_sharers(two_racks(), [[Slot(0, 0), Slot(0, 1)], [Slot(1, 0), Slot(1, 1)]]) == 1
    assert links.card_sharers(two_racks(), []) == 1


@given(
    members=st.sets(st.sampled_from(list(machines.slots(two_racks()))), min_size=1),
    size=st.integers(0, 10**12),
    more=st.integers(1, 10**12),
    sharers=st.integers(1, 8),
)
def test_a_sum_takes_longer_the_more_there_is_and_the_more_share(
    members: set[Slot], size: int, more: int, sharers: int
) -> None:
    cluster = two_racks()
    base = _all_reduce_s(cluster, members, size)
    assert math.isfinite(base)
    assert (base == 0) == (len(members) == 1)
    assert _all_reduce_s(cluster, [*members, *members], size) == base
    assert _all_reduce_s(cluster, members, size + more) >= base
    assert _all_reduce_s(cluster, members, size, sharers=sharers) >= base


def test_links_that_no_two_devices_need_may_be_left_out() -> None:
    alone = NodeGroup(count=1, device="cpu", devices_per_node=1)
    assert Cluster(name="alone", nodes=(alone,), links=Links()).racks == (0,)


def test_a_changed_cluster_is_checked_as_a_file_is() -> None:
    alone = NodeGroup(count=1, device="cpu", devices_per_node=1)
    with pytest.raises(
        BadInput, match=r"alone: links: missing key 'rack', over which devices of this cluster talk"
    ):
        with_nodes(Cluster(name="alone", nodes=(alone,), links=Links()), 2)


def test_a_host_keeps_memory_for_its_process_and_for_fragments_unless_its_file_says_how_much() -> None:
    left_out = NodeGroup(count=1, device="cpu", devices_per_node=1)
    assert HOST_PROCESS_BYTES + 1.3 * left_out.limit_bytes == pytest.approx(left_out.capacity_bytes)
    assert NodeGroup(count=1, device="cpu", devices_per_node=1, memory_bytes=2**20).margin_bytes == 0
    assert NodeGroup(count=1, device="cpu", devices_per_node=1, margin_bytes=7).margin_bytes == 7
    assert NodeGroup(count=1, device="A100-40GB", devices_per_node=1).margin_bytes == 0
    assert 0 < host_margin(2**20) < 2**20, "a small host leaves something"
