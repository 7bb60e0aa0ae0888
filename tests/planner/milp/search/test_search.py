"""The course of a search: no pin gives a better plan than none, every effort is honest, and Ctrl-C keeps the best."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.errors import BadInput
from planner.milp import Effort, Question, SearchState, effort_named, solve, solve_with_search
from planner.milp.search import pick
from planner.milp.search import search as searching
from planner.plan import Plan, dump
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile

ASKED = {
    "free": Question(profile=profile(chain(9, 3, skips=1), micros=(1, 2)), cluster=cluster(2, 2), batch=8),
    "tight": Question(
        profile=profile(chain(8, 4), micros=(1, 2), scale=10), cluster=cluster(4, memory=200_000), batch=4
    ),
    "two nodes": Question(profile=profile(chain(7, 5, skips=2), micros=(1, 2)), cluster=cluster(2), batch=4),
}
TOP = 6


@cache
def found(name: str) -> tuple[Plan, SearchState]:
    """Returns the answer to a question, and the search that gave it."""
    return solve_with_search(ASKED[name].instance(), ASKED[name].effort)


@cache
def quick(name: str) -> Plan:
    return solve(replace(ASKED[name], effort=effort_named("quick")))


@pytest.mark.parametrize("name", ASKED)
def test_no_configuration_that_is_pinned_gives_a_faster_plan_than_the_free_answer(name: str) -> None:
    question = ASKED[name]
    free, search = found(name)
    assert free.certificate is not None
    most = 1.0 if free.certificate.gap == 0 else 1.005
    met = sorted(
        (tried.answer.ns, tried.shape) for tried in search.tried.values() if tried.answer is not None
    )
    for _, shape in met[:TOP]:
        fix: dict[str, object] = {
            "data": shape.data,
            "pipeline": shape.workers,
            "micro": shape.micro,
            "chunks": shape.chunks,
            "shard": shape.shard,
        }
        pinned = solve(replace(question, fix=fix, schedules=(shape.family,)))
        assert pinned.prediction.step_ns * most >= free.prediction.step_ns, shape


@pytest.mark.parametrize("name", ASKED)
def test_less_effort_gives_a_plan_that_holds_and_a_bound_that_more_effort_does_not_refute(name: str) -> None:
    question = ASKED[name]
    best, less = found(name)[0], quick(name)
    assert violations(less, profile=question.profile, cluster=question.cluster) == []
    assert less.certificate is not None and less.certificate.stage == "settled"
    assert less.certificate.bound_ns <= best.prediction.step_ns <= less.prediction.step_ns


def test_an_effort_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="effort is 'most'"):
        effort_named("most")


@pytest.mark.parametrize("stage", ["settle", "work_through", "prove"])
def test_a_search_that_is_stopped_keeps_the_best_plan_with_an_honest_gap(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    question = ASKED["free"]
    best = found("free")[0]
    where = {"settle": pick, "work_through": searching.Waiting, "prove": SearchState}[stage]
    monkeypatch.setattr(where, stage, stop)
    plan, search = solve_with_search(question.instance(), Effort())
    assert search.stopped
    assert plan.certificate is not None
    assert plan.certificate.stage == ("picked" if stage == "settle" else "settled")
    assert plan.certificate.bound_ns <= best.prediction.step_ns <= plan.prediction.step_ns
    assert violations(plan, profile=question.profile, cluster=question.cluster) == []


def test_a_search_that_is_stopped_before_any_plan_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pick, "pick", stop)
    with pytest.raises(KeyboardInterrupt):
        solve(ASKED["free"])


def test_the_same_question_stopped_at_the_same_place_gives_the_same_bytes() -> None:
    asked = replace(ASKED["free"], effort=effort_named("quick"))
    assert dump(solve(asked)) == dump(quick("free"))
