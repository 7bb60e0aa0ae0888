"""The solver takes the sum that is least for the bytes of each stage, and says so in the plan."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cluster import Card, Cluster, Link, Links, NodeGroup
from planner.errors import BadInput
from planner.explore import explain
from planner.milp import Question, solve
from planner.plan import dump, told_sums
from planner.show import data, text
from planner.sums import SumLoad, SumName, SumRate, SumsByName, line_of
from planner.verify import violations
from tests.planner.milp.random_cases import chain, profile

FAST, SLOW = 1e9, 1e7


def rate(latency_s: float, bandwidth: float) -> SumRate:
    return SumRate(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)


NEVER = rate(1.0, 1.0)  # the least of any


def hosts(nodes: int = 4, cards: tuple[str, ...] = (), **sums: SumRate) -> Cluster:
    """Hosts of one device each, with sums that were measured between them."""
    measured = {name.replace("_", " "): each for name, each in sums.items()}
    measured |= {name: NEVER for name in ("ring", "direct") if sums and name not in sums}
    link = Link(latency_s=1e-5, bandwidth_bytes_per_s=FAST, sums=measured)
    faces = tuple(Card(interface=name) for name in cards)
    group = NodeGroup(count=nodes, device="cpu", devices_per_node=1, cards=faces)
    return Cluster(name="hosts", nodes=(group,), links=Links(rack=link))


COSTS = profile(chain(6, 1))


def question(cluster: Cluster, **fix: object) -> Question:
    return Question(
        profile=COSTS, cluster=cluster, batch=8, fix={"data": 4, "pipeline": 1, "shard": "none", **fix}
    )


def test_a_cluster_without_measured_sums_gives_a_plan_without_names() -> None:
    assert solve(question(hosts())).sums is None
    assert "\nsums:" not in dump(solve(question(hosts())))


def test_the_sum_that_takes_least_is_in_the_plan() -> None:
    cluster = hosts(ring=rate(1e-5, SLOW), direct=rate(1e-5, SLOW), rings_2=rate(1e-5, FAST))
    plan = solve(question(cluster))
    assert plan.sums == SumsByName(by=("rings 2",))
    assert violations(plan, profile=COSTS, cluster=cluster) == []
    assert told_sums(plan) == "rings 2"


def test_what_a_run_does_by_itself_is_not_named() -> None:
    cluster = hosts(ring=rate(1e-5, SLOW), direct=rate(1e-6, FAST))
    assert solve(question(cluster)).sums is None
    assert solve(question(hosts(2, ring=rate(1e-6, FAST), direct=rate(1e-5, SLOW)), data=2)).sums is None


def test_a_stage_is_timed_by_the_sum_that_it_is_named() -> None:
    rates = {"ring": rate(1e-4, FAST), "direct": rate(2e-3, FAST)}
    plan = solve(question(hosts(**rates)))
    assert plan.sums is not None
    size = sum(parameter.bytes for parameter in COSTS.graph.trained)
    line = line_of(SumName("ring"), SumLoad(4))
    assert plan.times[0].sync_ns == np.ceil(line.seconds(size, 1e-4, 1 / FAST) * 1e9 - 1e-6)


def test_the_cards_of_the_cluster_are_in_the_plan() -> None:
    cluster = hosts(cards=("ib0", "ib1"), direct=rate(1e-5, SLOW), rings_2=rate(1e-5, FAST))
    plan = solve(question(cluster))
    assert plan.sums == SumsByName(by=("rings 2",), cards=("ib0", "ib1"))
    other = hosts(cards=("ib0",), direct=rate(1e-5, SLOW))
    assert [str(found) for found in violations(plan, cluster=other)] == [
        "sums: sums.cards: has 'ib1'; the nodes of cluster 'hosts' list ib0"
    ]


@pytest.mark.parametrize("name", ["ring", "direct", "rings 2", "colours 2", "colours 4"])
def test_a_fixed_name_is_the_name_of_every_stage(name: str) -> None:
    cluster = hosts(direct=rate(1e-5, FAST))
    plan = solve(question(cluster, sums=name))
    assert plan.sums == (None if name == "direct" else SumsByName(by=(name,)))
    assert violations(plan, profile=COSTS, cluster=cluster) == []


def test_a_fixed_name_leaves_only_numbers_of_ranks_that_may_use_it() -> None:
    plan = solve(Question(profile=COSTS, cluster=hosts(4), batch=8, fix={"sums": "colours 3"}))
    assert plan.axes.data * plan.axes.spatial in (1, 3) or len(plan.schedule.place) * plan.axes.data not in (
        2,
        4,
    )


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ({"sums": "star"}, "no sum is called 'star'"),
        ({"sums": "nccl"}, "sums is nccl"),
        ({"sums": "ring", "shard": "state"}, "both sums and shard are fixed"),
    ],
)
def test_a_name_that_cannot_be_had_is_refused(fix: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        solve(Question(profile=COSTS, cluster=hosts(), batch=8, fix=fix))


def test_groups_of_gpus_have_no_names() -> None:
    link = Link(
        latency_s=1e-5,
        bandwidth_bytes_per_s=FAST,
        sums={"rings 2": rate(1e-9, 1e12), "ring": NEVER, "direct": NEVER},
    )
    group = NodeGroup(count=4, device="V100-16GB", devices_per_node=1)
    cluster = Cluster(name="gpus", nodes=(group,), links=Links(rack=link))
    assert solve(question(cluster)).sums is None
    with pytest.raises(BadInput, match="nccl sums between GPUs"):
        solve(question(cluster, sums="ring"))


def test_a_plan_whose_ranks_cannot_sum_so_is_refused() -> None:
    cluster = hosts(direct=rate(1e-5, SLOW), rings_2=rate(1e-5, FAST))
    plan = solve(question(cluster))
    for names, said in [
        (("colours 3",), "is colours 3, which 4 ranks over 1 cards cannot use"),
        (("star",), "no sum is called 'star'"),
        ((), "has 0 names; 1 stages need 1"),
    ]:
        wrong = plan.model_copy(update={"sums": SumsByName(by=names)})
        assert said in str(violations(wrong, graph=COSTS.graph, cluster=cluster))


def test_an_explanation_says_what_every_measured_sum_would_take() -> None:
    cluster = hosts(ring=rate(1e-5, SLOW), direct=rate(2e-5, SLOW), rings_2=rate(1e-5, FAST))
    found = explain(question(cluster))
    assert found.sums is not None
    assert found.sums.bytes == sum(parameter.bytes for parameter in COSTS.graph.trained)
    assert (found.sums.name, found.sums.ranks, found.sums.stage) == ("rings 2", 4, 0)
    assert next(iter(found.sums.ns)) == "rings 2" and set(found.sums.ns) == {"ring", "direct", "rings 2"}
    assert abs(found.sums.ns["rings 2"] - found.plan.times[0].sync_ns) <= 1
    said = next(line for line in text(found).splitlines() if line.startswith("Gradients of stage 0"))
    assert (
        "over 4 ranks by rings 2 in " in said
        and "; direct would take " in said
        and ", ring would take " in said
    )
    assert data(found)["sums"]["name"] == "rings 2"  # type: ignore[index]
    assert explain(question(hosts())).sums is None
