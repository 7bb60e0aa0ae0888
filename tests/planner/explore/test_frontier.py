"""The fronts: nothing on them is beaten, and what is asked for a limit directly is on them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from planner.cluster import Cluster, with_at_most
from planner.explore import Frontier, FrontierRow, frontier
from planner.explore.frontier import _Answer, _widest, with_bound
from planner.milp import Question, changed, solve_or_none
from planner.profile import Profile
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile


def question(costs: Profile, machines: Cluster) -> Question:
    return Question(profile=costs, cluster=machines, batch=6, schedules=("1f1b", "chimera"))


@pytest.fixture(scope="module")
def costs() -> Profile:
    return profile(chain(5, 3, skips=1))


@pytest.fixture(scope="module")
def machines() -> Cluster:
    return cluster(3)


@pytest.fixture(scope="module")
def found(costs: Profile, machines: Cluster) -> Frontier:
    return frontier(question(costs, machines), most=100, resolution=0.0)


def test_no_plan_of_a_front_is_as_fast_as_a_thriftier_one(found: Frontier) -> None:
    memory = [(row.step_ns, -row.peak_bytes) for row in found.front("memory")]
    devices = [(row.step_ns, -row.devices) for row in found.front("devices")]
    for front in (memory, devices):
        assert len(front) > 1
        assert front == sorted(front)
        assert len({a for a, _ in front}) == len({b for _, b in front}) == len(front)


def test_every_plan_of_a_front_holds_and_has_a_gap_of_its_own(
    found: Frontier, costs: Profile, machines: Cluster
) -> None:
    for row in found.rows:
        assert violations(row.plan, profile=costs, cluster=machines) == []
        assert row.plan.certificate is not None
        assert row.gap == 0
        assert row.plan.certificate.bound_ns <= row.step_ns


def test_whatever_the_limit_a_plan_of_the_front_is_its_answer(
    found: Frontier, costs: Profile, machines: Cluster
) -> None:
    assert found.whole == ("memory", "devices")
    instance = question(costs, machines).instance()
    front = found.front("memory")
    for limit in range(front[-1].peak_bytes - 5000, front[0].peak_bytes, 15_000):
        direct = solve_or_none(changed(instance, cluster=with_at_most(machines, limit)))
        fits = [row for row in front if row.peak_bytes <= limit]
        if direct is None:
            assert not fits
        else:
            assert min(row.step_ns for row in fits) == direct.prediction.step_ns


def test_fewer_devices_are_slower_and_one_is_enough(found: Frontier) -> None:
    front = found.front("devices")
    assert front[-1].devices == 1
    assert {row.devices for row in front} <= {1, 2, 3}


def test_no_limit_is_asked_twice_where_a_larger_one_has_the_thriftier_plan() -> None:
    """Plans of limits 100 and 90 use 50 and 60: nothing between 50 and 100 is left to ask."""
    plans = {name: SimpleNamespace(prediction=SimpleNamespace(step_ns=7)) for name in "ab"}
    answers = [_Answer(limit=100, uses=50, plan=plans["a"]), _Answer(limit=90, uses=60, plan=plans["b"])]  # type: ignore[arg-type]
    top = SimpleNamespace(prediction=SimpleNamespace(step_ns=5))
    answers.append(_Answer(limit=120, uses=120, plan=top))  # type: ignore[arg-type]
    assert _widest(answers, 49, 0.0) == (100, 120)


def test_a_front_cut_short_says_that_it_is_not_whole(costs: Profile, machines: Cluster) -> None:
    hurried = frontier(question(costs, machines), trades=("memory",), most=1)
    assert hurried.whole == ()
    assert 1 <= len(hurried.rows) <= 2


def test_where_nothing_fits_there_is_no_front(costs: Profile) -> None:
    assert frontier(question(costs, cluster(1, memory=10))).rows == ()


def test_limits_of_devices_stay_those_of_the_machines(found: Frontier, machines: Cluster) -> None:
    capacity = machines.nodes[0].capacity_bytes
    row: FrontierRow
    for row in found.rows:
        assert {memory.limit for memory in row.plan.prediction.memory} == {capacity}


def test_a_bound_that_a_plan_refutes_is_not_carried_to_it(found: Frontier) -> None:
    plan = found.rows[-1].plan
    assert plan.certificate is not None
    carried = with_bound(plan, plan.certificate.objective_ns + 1)
    assert carried.certificate == plan.certificate
