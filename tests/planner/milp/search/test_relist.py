"""Orders listed anew in the search: never slower, within memory, as executable as any other, and only where free."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.milp import Question, SearchState, solve, solve_with_search
from planner.milp.layer_orders.orders import Searched
from planner.milp.search import relist as relisting
from planner.milp.search.relist import costs_of
from planner.plan import Plan, dump, schedule_of
from planner.plan.yaml import parse
from planner.profile import Profile
from planner.program import lower
from planner.program import violations as program_violations
from planner.proof.descent import judge
from planner.schedule import relistings
from planner.simulate import period_of_plan
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile

FIX = {"pipeline": 4, "data": 1}
MACHINES = cluster(4, memory=200_000)
SEEDS = (0, 1, 5)
FAMILIES = ("1f1b", "zb-h1", "v-half", "listed")  # the last allows others to be listed anew


def costs(seed: int) -> Profile:
    return profile(chain(10, seed, skips=seed % 3), scale=10)


@cache
def grown(seed: int) -> tuple[Plan, SearchState]:
    return solve_with_search(
        Question(profile=costs(seed), cluster=MACHINES, batch=6, fix=FIX, schedules=FAMILIES).instance()
    )


def as_generated(seed: int, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(relisting, "grow", lambda found: [])
    return solve(Question(profile=costs(seed), cluster=MACHINES, batch=6, fix=FIX, schedules=FAMILIES))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_no_slower_for_orders_listed_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = grown(seed)
    plain = as_generated(seed, monkeypatch)
    assert plan.prediction.step_ns <= plain.prediction.step_ns
    assert plan.certificate is not None
    assert plan.certificate.gap == 0


def test_some_plan_is_faster_for_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = [seed for seed in SEEDS if "relisted" in grown(seed)[0].schedule.settings]
    assert faster
    for seed in faster:
        plan, found = grown(seed)
        assert plan.schedule.settings["relisted"] is True
        assert plan.prediction.step_ns < as_generated(seed, monkeypatch).prediction.step_ns
        assert plan.certificate is not None and plan.certificate.searched is not None
        assert plan.certificate.searched.rescheduled == found.listed


@pytest.mark.parametrize("seed", SEEDS)
def test_an_order_listed_anew_is_a_plan_like_any_other(seed: int) -> None:
    plan, _ = grown(seed)
    assert violations(plan, profile=costs(seed), cluster=MACHINES) == []
    assert parse(dump(plan)) == plan
    assert period_of_plan(plan) == plan.prediction.step_ns
    schedule = schedule_of(plan)
    for layout, streams in (("channel", "channel"), ("global", "global")):
        program = lower(schedule, plan.hops, plan.times, layout=layout)  # type: ignore[arg-type]
        assert program_violations(program, schedule, streams=streams) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_listing_the_winner_once_more_gives_nothing_faster(seed: int) -> None:
    plan, found = grown(seed)
    assert found.best is not None
    assert found.best.answer is not None
    for number, (_, schedule) in enumerate(relistings(schedule_of(plan), costs_of(plan.times, plan.hops))):
        shape = replace(found.best.shape, listed=f"again {number}")
        found.instance.problems.enter(shape, schedule)
        posed = found.instance.problem(shape)
        assert posed is not None
        assert judge(posed, found.best.answer.cut[None, :])[0] >= plan.prediction.step_ns


@pytest.mark.parametrize(
    ("own", "bound", "own_bound"), [([], 9, 0), ([4], 9, 4), ([12, 4], 12, None), ([9], 9, None)]
)
@pytest.mark.parametrize("begun", [False, True])
def test_orders_listed_anew_that_are_left_open_leave_the_bound_of_the_families_own_orders(
    own: list[int], bound: int, own_bound: int | None, begun: bool
) -> None:
    plan, found = grown(SEEDS[0])
    best, ns = found.best, plan.prediction.step_ns
    assert best is not None and found.open == found.left == found.left_listed == []
    assert plan.certificate is not None and plan.certificate.own_order_bound_ns is None
    anew = replace(best, shape=replace(best.shape, listed="again"), bound_ns=ns - 9)
    named = [replace(best, shape=replace(best.shape, listed=""), bound_ns=ns - less) for less in own]
    state = replace(found, open=[anew, *named])
    if not begun:
        state = replace(found, left=[ns - less for less in own], left_listed=[ns - 9])
    proof = Searched(best=state).certificate()
    assert proof.bound_ns == ns - bound
    assert proof.own_order_bound_ns == (None if own_bound is None else ns - own_bound)


def test_a_schedule_that_is_fixed_keeps_the_order_it_is_known_for() -> None:
    fixed, found = solve_with_search(
        Question(profile=costs(0), cluster=MACHINES, batch=6, fix=FIX, schedules=["1f1b", "zb-h1"]).instance()
    )
    assert found.listed == 0
    assert "relisted" not in fixed.schedule.settings
    freed, found = solve_with_search(
        Question(
            profile=costs(0), cluster=MACHINES, batch=6, fix=FIX, schedules=["1f1b", "zb-h1", "listed"]
        ).instance()
    )
    assert found.listed > 0
    assert freed.prediction.step_ns < fixed.prediction.step_ns
