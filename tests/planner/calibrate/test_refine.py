from __future__ import annotations

import pytest

from planner.calibrate.refine import measured_times, refined
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan, StageTimes
from planner.simulate import period_of_plan, simulate_in_stride, simulate_plan
from planner.timeline import compare
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile


def plan_of(**fix: object) -> Plan:
    fixed = {"pipeline": 1, "data": 4, "update": "rolling", "schedule": "overlap", "chunks": 4, **fix}
    return solve(Question(profile=profile(chain(24, 0)), cluster=cluster(4, 1), batch=8, fix=fixed))


def slower_link(stage: int, times: StageTimes) -> StageTimes:
    """Sums take nearly as long as the work, those of later stages longer."""
    return times.model_copy(
        update={"sync_ns": round(0.7 * (stage + 1) * (times.forward_ns + times.backward_ns))}
    )


def test_a_run_that_went_as_planned_gives_the_planned_times_and_order() -> None:
    plan = plan_of()
    measured = simulate_plan(plan, steps=5)
    again = refined(plan, measured)
    assert [t.sync_ns for t in again.times] == [t.sync_ns for t in plan.times]
    assert [t.forward_ns for t in again.times] == [t.forward_ns for t in plan.times]
    assert again.prediction.step_ns == plan.prediction.step_ns


def test_on_a_slower_link_the_order_is_looked_for_again() -> None:
    plan = plan_of()
    truth = plan.model_copy(update={"times": tuple(slower_link(*row) for row in enumerate(plan.times))})
    again = refined(plan, simulate_plan(truth, steps=6))
    assert again.schedule.orders != plan.schedule.orders
    assert again.prediction.step_ns < period_of_plan(truth)
    assert violations(again) == []


def test_sums_that_waited_for_the_link_count_without_the_wait() -> None:
    plan = plan_of()
    times = [t.model_copy(update={"sync_ns": 10**6 * (i + 1)}) for i, t in enumerate(plan.times)]
    truth = plan.model_copy(update={"times": tuple(times)})
    found = measured_times(plan, simulate_plan(truth, steps=4))
    assert [t.sync_ns for t in found] == [t.sync_ns for t in times]


def test_other_families_have_nothing_to_refine() -> None:
    plan = plan_of(schedule="1f1b", chunks=1)
    with pytest.raises(BadInput, match=r"family 1f1b.*overlap"):
        refined(plan, simulate_plan(plan))


def test_a_step_whose_sums_reach_into_the_next_is_as_long_as_its_period() -> None:
    plan = plan_of()
    slow = plan.model_copy(update={"times": tuple(slower_link(*row) for row in enumerate(plan.times))})
    found = compare(simulate_in_stride(slow), simulate_plan(slow, steps=9), skip_steps=2)
    assert found.predicted_step_ns == found.measured_step_ns == period_of_plan(slow)
