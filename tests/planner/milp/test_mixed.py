"""Two types of devices: shares of the layers follow their speed, stages their memory, whatever the file's order."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from planner.cluster import CATALOGUE, Cluster, NodeGroup, Rates
from planner.configurations.configurations import shapes
from planner.milp import Question, solve, solve_with_search
from planner.milp.search.candidates import ranked
from planner.milp.search.totals import TotalsBound
from planner.plan import Plan, schedule_of
from planner.profile import Profile
from planner.program import lower
from planner.program import violations as program_violations
from planner.proof.descent import UNFIT_NS, judge
from planner.verify import violations
from tests.planner.milp.instances import Block, chain, cluster, profile

TYPES = ("1f1b", "zb-h1", "interleaved")
ALL = {"pipeline": 4, "data": 1}


def group(count: int, *, speed: float = 1.0, memory: int = 1 << 40) -> NodeGroup:
    rates = Rates(fp32_flop_per_s=speed * 1e12)
    return NodeGroup(count=count, device="any", devices_per_node=1, memory_bytes=memory, rates=rates)


def machines(*groups: NodeGroup) -> Cluster:
    return Cluster(name="mixed", nodes=groups, links=cluster(2).links)


def plan_of(costs: Profile, mixed: Cluster, **fix: object) -> Plan:
    plan = solve(Question(profile=costs, cluster=mixed, batch=6, fix={**ALL, **fix}, schedules=TYPES))
    assert violations(plan, profile=costs, cluster=mixed) == []
    assert plan.certificate is not None
    assert plan.certificate.gap == 0
    return plan


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_the_groups_in_the_file_does_not_matter(seed: int) -> None:
    costs = profile(chain(8, seed, skips=seed % 2))
    slow, small = group(2, speed=0.5), group(2, memory=150_000 + 50_000 * seed)
    there = plan_of(costs, machines(slow, small))
    back = plan_of(costs, machines(small, slow))
    assert there.prediction.step_ns == back.prediction.step_ns


def equal(count: int) -> Profile:
    block = Block(forward=1000, input_grad=1000, weight_grad=1000, out=64, own=20_000, weight=40, reads=(-1,))
    return profile([replace(block, reads=(k - 1,)) for k in range(count)])


def layers_by_node(plan: Plan) -> list[int]:
    """On each node, in the order of the file."""
    held = [0] * len(plan.places)
    for stage, worker in zip(plan.stages, plan.schedule.place[0], strict=True):
        held[worker] += len(stage.layers)
    return held


def test_a_device_of_half_the_speed_gets_half_the_layers() -> None:
    plan = solve(
        Question(
            profile=equal(18),
            cluster=machines(group(2), group(2, speed=0.5)),
            batch=24,
            fix=ALL,
            schedules=["gpipe"],
        )
    )
    fast, slow = layers_by_node(plan)[:2], layers_by_node(plan)[2:]
    assert sum(fast) == 2 * sum(slow)


def test_bounds_of_slow_devices_are_of_their_own_times() -> None:
    """All devices are slower than the profiled one; bounds by its times would leave a gap of that ratio."""
    costs = replace(equal(12), device="V100-32GB")

    def least_ns(device: str) -> float:
        alike = NodeGroup(count=4, device=device, devices_per_node=1, memory_bytes=1 << 40)
        question = Question(profile=costs, cluster=machines(alike), batch=24, schedules=["1f1b"])
        instance = question.instance()
        bound = TotalsBound(instance)
        return min(bound.free_ns(shape) for shape in ranked(instance))

    rates = [CATALOGUE[device].fp32_flop_per_s for device in ("V100-32GB", "P100-16GB")]
    ratio = rates[0] / rates[1]
    assert ratio > 1.4
    assert least_ns("P100-16GB") == pytest.approx(ratio * least_ns("V100-32GB"), rel=0.01)


def test_the_first_stages_stand_on_the_devices_with_more_memory() -> None:
    """Under 1F1B the first stage holds most; here the large devices are the last of the file."""
    plan = solve(
        Question(
            profile=equal(8),
            cluster=machines(group(2, memory=100_000), group(2, memory=400_000)),
            batch=8,
            fix={**ALL, "recompute": False},
            schedules=["1f1b"],
        )
    )
    assert plan.schedule.place[0] == (3, 2, 1, 0)
    program = lower(schedule_of(plan), plan.hops, plan.times, layout="global")
    assert program_violations(program, schedule_of(plan)) == []


@pytest.mark.parametrize("seed", range(3))
def test_no_cut_in_either_direction_is_faster(seed: int) -> None:
    costs = profile(chain(7, seed))
    mixed = machines(group(1, speed=0.5, memory=260_000), group(2, memory=180_000))
    space = Question(profile=costs, cluster=mixed, batch=4, schedules=["1f1b", "zb-h1"]).instance()
    plan, _ = solve_with_search(space)
    every = shapes(mixed, layers=7, batch=4, micros=[1], pinned=space.pins)
    least = UNFIT_NS
    for shape in every:
        posed = space.problem(shape)
        if posed is not None:
            inner = combinations(range(1, 7), shape.stages - 1)
            cuts = np.array([[0, *cut, 7] for cut in inner])
            least = min(least, int(judge(posed, cuts).min()))
    assert any(shape.mirrored for shape in shapes(mixed, layers=7, batch=4, micros=[1], pinned=space.pins))
    assert plan.prediction.step_ns <= least
    if not any(stage.recompute for stage in plan.stages):
        assert plan.prediction.step_ns == least


@pytest.mark.parametrize("family", ["chimera", "chimera-zb", "overlap"])
def test_a_pipeline_is_as_fast_whichever_end_of_the_machines_is_named_first(family: str) -> None:
    """Of an odd number of micro-batches one of two pipes has more than the other."""
    block = Block(forward=100, input_grad=100, weight_grad=100, out=4, own=0, weight=4, reads=(-1,))
    after = [replace(block, reads=(k,)) for k in range(3 if family == "overlap" else 2)]
    costs = profile([replace(block, own=4000), *after])
    small, large = group(1, memory=5500), group(1, memory=8500)
    one, other = (
        solve(
            Question(
                profile=costs,
                cluster=machines(*nodes),
                batch=3,
                schedules=[family],
                fix={"pipeline": 2, "data": 1},
            )
        )
        for nodes in ((small, large), (large, small))
    )
    assert one.prediction.step_ns == other.prediction.step_ns
    assert not violations(one, profile=costs, cluster=machines(small, large))


def test_alike_machines_have_one_direction() -> None:
    space = Question(profile=profile(chain(7, 1)), cluster=cluster(4), batch=4).instance()
    assert not any(
        shape.mirrored for shape in shapes(cluster(4), layers=7, batch=4, micros=[1], pinned=space.pins)
    )
