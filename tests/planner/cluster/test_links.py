"""Sums by name are priced by what was measured of them, and the least counts at every size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.cluster import (
    Card,
    Cluster,
    Correction,
    Corrections,
    Link,
    Links,
    NodeGroup,
    all_reduce,
    slots,
    spread,
    sum_s,
    with_network,
)
from planner.cluster.links import named_sum
from planner.sums import SumLoad, SumRate, line_of, names_for, parse

RATES = {
    "ring": SumRate(latency_s=1e-4, bandwidth_bytes_per_s=1e8),
    "direct": SumRate(latency_s=5e-5, bandwidth_bytes_per_s=6e7),
    "rings 2": SumRate(latency_s=3e-4, bandwidth_bytes_per_s=9e7),
    "colours 2": SumRate(latency_s=2e-4, bandwidth_bytes_per_s=8e7),
}


def hosts(
    nodes: int, devices: int = 1, cards: int = 0, rates: dict[str, SumRate] = RATES, device: str = "cpu"
) -> Cluster:
    link = Link(latency_s=1e-4, bandwidth_bytes_per_s=1e8, sums=rates)
    group = NodeGroup(
        count=nodes,
        device=device,
        devices_per_node=devices,
        cards=tuple(Card(interface=f"eth{i}") for i in range(cards)),
    )
    return Cluster(name="hosts", nodes=(group,), links=Links(node=link, rack=link))


def test_the_least_of_all_names_counts_at_every_size() -> None:
    machines = hosts(4, cards=2)
    over = spread(machines, slots(machines))
    found, sizes = all_reduce(machines, over, "free"), np.array([1, 10**3, 10**5, 10**6, 10**9])
    every = {name: named_sum(machines, over, [name]).ns(sizes) for name in RATES}
    assert found.ns(sizes).tolist() == np.minimum.reduce(list(every.values())).tolist()
    assert [found.name(int(size)) for size in sizes] == [
        min(every, key=lambda name: int(every[name][at])) for at in range(len(sizes))
    ]
    assert found.name(1) == "direct"
    assert found.name(10**9) == "rings 2"


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(sorted(RATES)), st.floats(1e-7, 1e-2), st.floats(1e5, 1e11)),
        min_size=1,
        unique_by=lambda row: row[0],
    ),
    size=st.integers(1, 10**10),
)
def test_no_line_that_counts_is_left_out(rows: list[tuple[str, float, float]], size: int) -> None:
    rates = RATES | {name: SumRate(latency_s=a, bandwidth_bytes_per_s=b) for name, a, b in rows}
    machines = hosts(8, rates=rates)
    over = spread(machines, slots(machines))
    least = min(int(named_sum(machines, over, [name]).ns(np.array([size]))[0]) for name in rates)
    assert abs(int(all_reduce(machines, over, "free").ns(np.array([size]))[0]) - least) <= 1


def test_a_sum_by_name_is_its_formula_with_the_rate_that_was_measured() -> None:
    machines = hosts(4, 2, cards=2)
    over = spread(machines, slots(machines))
    rate = RATES["rings 2"]
    line = line_of(parse("rings 2"), SumLoad(places=8, behind=2, cards=2))
    want = line.seconds(10**6, rate.latency_s, 3 / rate.bandwidth_bytes_per_s) * 1e9
    assert abs(int(named_sum(machines, over, ["rings 2"], sharers=3).ns(np.array([10**6]))[0]) - want) <= 1


def test_a_name_that_was_not_measured_is_priced_by_the_link() -> None:
    machines = hosts(4, rates={})
    over = spread(machines, slots(machines))
    ring = named_sum(machines, over, ["ring"])
    assert ring.ns(np.array([10**6]))[0] == np.ceil(6 * (1e-4 + 10**6 / 4 / 1e8) * 1e9 - 1e-6)


def test_without_measured_sums_and_between_gpus_a_sum_is_that_of_the_link() -> None:
    for machines in (hosts(4, rates={}), hosts(4, device="V100-16GB")):
        over = spread(machines, slots(machines))
        found = all_reduce(machines, over, "free")
        assert found.names == ()
        assert found.name(10**6) == ""
        assert found.ns(np.array([10**6]))[0] == np.ceil(sum_s(machines, over, 10**6) * 1e9 - 1e-6)


@pytest.mark.parametrize(("places", "own"), [(2, "ring"), (4, "direct")])
def test_sums_that_have_no_choice_take_what_a_run_does_by_itself(places: int, own: str) -> None:
    machines = hosts(places)
    over = spread(machines, slots(machines))
    for how, name in (("itself", own), ("direct", "direct"), ("ring", "ring")):
        found = all_reduce(machines, over, how)  # type: ignore[arg-type]
        assert found.names == ()
        assert found.ns(np.array([10**6])) == named_sum(machines, over, [name]).ns(np.array([10**6]))


def test_what_runs_showed_corrects_named_sums_too() -> None:
    machines = hosts(4)
    fitted = Corrections(
        sum=Correction(start_s=1e-3, factor=2.0, samples=1), step_spread=0.0, rests_on=("a run",)
    )
    again = machines.model_copy(update={"fitted": fitted})
    over, sizes = spread(machines, slots(machines)), np.array([1, 10**7])
    plain, found = (all_reduce(each, over, "free").ns(sizes) for each in (machines, again))
    assert np.abs(found - (10**6 + 2 * plain)).max() <= 3


def test_a_faster_network_has_faster_sums() -> None:
    twice = with_network(hosts(4), 2.0)
    assert twice.links.rack is not None
    assert twice.links.rack.sums["ring"] == SumRate(latency_s=1e-4, bandwidth_bytes_per_s=2e8)


def test_every_name_that_is_offered_has_a_price() -> None:
    for places, cards in product(range(2, 18), (0, 2)):
        machines = hosts(places, cards=cards)
        over = spread(machines, slots(machines))
        for name in names_for(places, machines.cards):
            assert named_sum(machines, over, [str(name)]).ns(np.array([10**6]))[0] > 0


def test_a_link_with_measured_sums_has_those_that_all_ranks_may_use() -> None:
    for lacking, said in (("ring", "without ring"), ("direct", "without direct")):
        rates = {name: rate for name, rate in RATES.items() if name != lacking}
        with pytest.raises(ValidationError, match=said):
            hosts(4, rates=rates)
    with pytest.raises(ValidationError, match="no sum is called 'star'"):
        hosts(4, rates=RATES | {"star": RATES["ring"]})
    with pytest.raises(ValidationError, match="NCCL has no other sums"):
        hosts(4, rates=RATES | {"nccl": RATES["ring"]})


def test_cards_are_named_once_and_alike_on_all_nodes() -> None:
    twice = (Card(interface="eth0"), Card(interface="eth0"))
    with pytest.raises(ValidationError, match="eth0, eth0"):
        NodeGroup(count=2, device="cpu", devices_per_node=2, cards=twice)
    with pytest.raises(ValidationError, match="eth0 beside devices_per_card"):
        NodeGroup(count=2, device="cpu", devices_per_node=2, cards=twice[:1], devices_per_card=1)
    one, two = hosts(2, cards=1).nodes[0], hosts(2, cards=2).nodes[0]
    links = hosts(4).links
    assert links.rack is not None
    with pytest.raises(ValidationError, match="other cards"):
        Cluster(name="mixed", nodes=(one, two), links=links.model_copy(update={"cluster": links.rack}))
