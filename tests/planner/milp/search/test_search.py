"""The course of a search: no pin gives a better plan than none, every effort is honest, and Ctrl-C keeps the best."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace

import pytest

from planner import limits
from planner.errors import BadInput, Infeasible
from planner.limits import Effort, SearchProgress, SearchWatch, effort_named
from planner.milp import Question, SearchState, solve, solve_with_search
from planner.milp.search import pick
from planner.milp.search import search as searching
from planner.milp.search.candidates import Candidates, plainest
from planner.milp.search.relist import Waiting
from planner.plan import Plan, dump
from planner.profile import Seconds
from planner.proof.boxes import ROUNDING
from planner.proof.descent import annealed, descend, even
from planner.proof.feasible import windows
from planner.verify import violations
from tests.draws import SEED, part
from tests.planner.milp.instances import chain, cluster, profile
from tests.planner.milp.search.test_totals import branched, cuts, posed

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


@pytest.mark.parametrize("schedule", ["1f1b", "chimera", "zb-h2"])
def test_what_little_work_proves_is_not_annealed(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(ASKED["free"], fix={"pipeline": 2, "data": 2}, schedules=(schedule,))
    monkeypatch.setattr(pick, "settle", lambda _: pytest.fail("a plan that is proved was annealed"))
    plan = solve(asked)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "SOON_PROVED", -1)  # answers are annealed before any proof
    other = solve(asked)
    for each in (plan, other):
        assert each.certificate is not None and each.certificate.gap == 0
    assert plan.prediction.step_ns == other.prediction.step_ns


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
    where = {"settle": pick, "work_through": searching.Waiting, "prove": searching}[stage]
    monkeypatch.setattr(where, stage, stop)
    if stage == "settle":
        monkeypatch.setattr(limits, "SOON_PROVED", -1)
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


@pytest.mark.parametrize("name", ASKED)
def test_bounds_that_come_near_before_any_long_look_are_honest(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = found(name)[0].prediction.step_ns
    monkeypatch.setattr(limits, "LOOKS", 0.0)
    bounds = []
    for share in (0.0, 0.9):
        monkeypatch.setattr(limits, "NEAR_WORK", share)
        plan = solve(ASKED[name])
        assert plan.certificate is not None
        assert plan.certificate.bound_ns <= best <= plan.prediction.step_ns
        bounds.append(plan.certificate.bound_ns)
    assert bounds[0] < bounds[1] or (name != "tight" and bounds[0] == bounds[1])


# Ctrl-C


@cache
def calls(name: str) -> int:
    """Returns how many calls of functions a question takes to be answered."""
    counted = [0]

    def count(*_: object) -> None:
        counted[0] += 1

    sys.setprofile(count)
    try:
        solve(ASKED[name])
    finally:
        sys.setprofile(None)
    return counted[0]


def interrupted_at(name: str, moment: int) -> Plan | None:
    """Answers a question and presses Ctrl-C at a call of a function; None where nothing was found."""
    left = [moment]

    def press(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    watch = SearchWatch()
    asked = replace(ASKED[name], effort=Effort(watch=watch))
    with watch.stoppable():
        sys.setprofile(press)
        try:
            return solve(asked)
        except KeyboardInterrupt:
            return None
        finally:
            sys.setprofile(None)
            assert watch.stopped


MOMENTS = {"free": 5, "two nodes": 2}


@pytest.mark.parametrize("name", MOMENTS)
def test_ctrl_c_at_any_moment_gives_a_plan_with_an_honest_gap(name: str) -> None:
    question, best = ASKED[name], found(name)[0]
    drawn = Random(f"{SEED} {name}")
    for moment in (10, *(drawn.randrange(1, calls(name)) for _ in range(MOMENTS[name]))):
        plan = interrupted_at(name, moment)
        assert plan is not None and plan.certificate is not None
        assert plan.certificate.bound_ns <= best.prediction.step_ns <= plan.prediction.step_ns
        assert plan.certificate.objective_ns == plan.prediction.step_ns
        assert violations(plan, profile=question.profile, cluster=question.cluster) == []


def test_ctrl_c_before_the_first_answer_gives_a_plan_where_only_recomputing_fits() -> None:
    """Nothing that is tried first fits."""
    asked = replace(ASKED["tight"], fix={"pipeline": 4, "data": 1})
    watch = SearchWatch()
    with watch.stoppable():
        signal.raise_signal(signal.SIGINT)
        plan, search = solve_with_search(asked.instance(), Effort(watch=watch))
    assert search.stopped and plan.certificate is not None and plan.certificate.searched is not None
    assert plan.certificate.bound_ns <= solve(asked).prediction.step_ns <= plan.prediction.step_ns
    assert violations(plan, profile=asked.profile, cluster=asked.cluster) == []


def test_ctrl_c_ends_the_search_for_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr("planner.milp.infeasible.report", report)
    asked = replace(ASKED["tight"], cluster=cluster(1, memory=1000))
    watch = SearchWatch()
    with watch.stoppable(), pytest.raises(Infeasible, match="stopped before it was known"):
        solve(replace(asked, effort=Effort(watch=watch)))


def test_the_second_ctrl_c_ends() -> None:
    watch = SearchWatch()
    with watch.stoppable():
        signal.raise_signal(signal.SIGINT)
        assert watch.stopped
        with pytest.raises(KeyboardInterrupt):
            watch.begin()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_search_tells_how_far_it_is_and_its_bound_holds_at_any_time() -> None:
    told: list[SearchProgress] = []
    plan = solve(replace(ASKED["free"], effort=Effort(watch=SearchWatch(told.append, every_s=0))))
    assert dump(plan) == dump(found("free")[0]), "who watches changes nothing"
    assert plan.certificate is not None and plan.certificate.searched is not None
    step = plan.prediction.step_ns
    assert told[-1].best_ns == step and len(told) > 10
    assert all(each.bound_ns is None or each.bound_ns <= step for each in told)
    assert all(each.best_ns is None or each.best_ns >= step for each in told)
    assert all(0 <= each.done <= each.all for each in told)
    bounds = [each.slower for each in told if each.slower is not None]
    assert bounds and bounds[-1] <= bounds[0]


def test_an_error_that_a_library_makes_of_ctrl_c_ends_the_search_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prove(state: SearchState) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("cannot compare") from None

    def swallow(state: SearchState) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        state.follow()

    for spoilt in (prove, swallow):
        monkeypatch.setattr(searching, "prove", spoilt)
        watch = SearchWatch()
        with watch.stoppable():
            plan, search = solve_with_search(ASKED["two nodes"].instance(), Effort(watch=watch))
        assert search.stopped and plan.certificate is not None
    monkeypatch.setattr(searching, "prove", lambda state: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        solve(ASKED["two nodes"])


def test_where_memory_excludes_plans_all_families_of_several_uses_of_the_devices_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SPARED", 1)
    question = replace(ASKED["tight"], cluster=cluster(4, memory=60_000))
    state = SearchState(instance=question.instance(), effort=question.effort)
    every = Candidates(state.instance)
    pick.pick(state, every)
    met = list(searching._tight(state, every))
    assert state.best is None, "nothing fits as it is, so that nothing is ruled out"
    for shape in met:
        assert state.tried[shape].answer is None
    uses = {(shape.data, shape.workers) for shape in met}
    assert len(uses) > 3
    assert all(len({s.family for s in met if (s.data, s.workers) == use}) > 3 for use in uses)


def test_where_memory_binds_all_variants_of_the_best_uses_of_the_devices_are_looked_into_first() -> None:
    question = replace(ASKED["tight"], cluster=cluster(4, memory=100_000))
    state = SearchState(instance=question.instance(), effort=question.effort)
    waiting, every = Waiting(state=state), Candidates(state.instance)
    pick.pick(state, every)
    assert searching._spare(state, every), "memory excludes cuts that would be faster"
    uses = {searching._use(shape) for shape, tried in state.tried.items() if tried.answer is not None}
    assert len(uses) == 1
    searching._solve_uses(state, waiting, every)
    own = [shape for shape in every if searching._use(shape) in uses]
    variants = [each for shape in own for each in (shape, *pick.thriftier(state.instance, shape))]
    assert 0 < len(own) < len(every) and len(waiting.done) > len(own)
    assert not [each for each in variants if each not in waiting.done and searching._may_win(state, each)]


@pytest.mark.parametrize("stages", [1, limits.HULL_STAGES])
def test_no_variant_is_faster_than_the_bound_of_all_of_them(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HULL_STAGES", stages)  # beyond, rows and windows bound the cuts
    monkeypatch.setattr(limits, "BARE_PARTS", 10)
    bounded = 0
    for seed in part(
        (1, 5, 8, 9, 11, 12, 13, 14, 15, 16, 17, 20), 2
    ):  # some have silent neighbours in all of them
        given = branched(seed)
        slow = Seconds(median=1e-6)  # updates, so that variants that share them are faster
        optimizer = replace(given.profile.optimizer, by_element=True, seconds_per_parameter=slow)
        given = replace(given, profile=replace(given.profile, optimizer=optimizer))
        for problem in posed(given, seed):
            plain = plainest(problem.shape)
            every = [plain, *given.by_element(plain), *pick.thriftier(given, plain)]
            known = [own for shape in every if (own := given.problem(shape)) and not own.flagged]
            least = [int(own.times(cuts(own)).min()) for own in known if len(cuts(own))]
            state = SearchState(instance=given, effort=Effort(), below=2 * min(least, default=1))
            pick.bare_ns(state, problem.shape)
            bound, _ = given.kept.bare.get(plain, (0.0, 0))
            assert all(bound <= ns + ROUNDING for ns in least), str(plain)
            bounded += bound > 0
    assert bounded


def test_annealing_ends_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    given = profile(chain(12, 1, skips=4))
    instance = Question(profile=given, cluster=cluster(1, 4), batch=8, schedules=("wave",)).instance()
    problem = next(p for p in map(instance.problem, Candidates(instance)) if p and p.shape.workers == 4)
    begun = descend(problem, *windows(problem), even(problem))
    assert begun is not None
    spent = []
    for work in (limits.ANNEAL_NS, 0.0):
        monkeypatch.setattr(limits, "ANNEAL_NS", work)
        before = problem.meter.spent_ns
        assert annealed(problem, *windows(problem), begun, 4000).ns <= begun.ns
        spent.append(problem.meter.spent_ns - before)
    assert spent[1] < spent[0] / 10


def test_after_a_first_turn_for_all_the_lowest_bound_has_every_turn_whether_it_has_flags_or_not() -> None:
    def tried(name: str, bound: int, gain: int, *, flagged: bool = False) -> SimpleNamespace:
        shape, problem = SimpleNamespace(stages=1), SimpleNamespace(flagged=flagged)
        return SimpleNamespace(
            name=name, bound_ns=bound, gain=gain, shape=shape, problem=problem, turn=(bound, name, 0)
        )

    class Search:
        instance, left, limit = SimpleNamespace(meter=SimpleNamespace(spent_ns=0.0)), [950], 1000
        left_listed = [900]
        turns: list[tuple[str, int]] = []

        def is_left(self, one: SimpleNamespace) -> bool:
            return bool(one.bound_ns < self.limit)

        def _prove(self, one: SimpleNamespace, boxes: int, work_ns: float) -> None:
            self.turns.append((one.name, boxes))
            self.instance.meter.spent_ns += 1
            one.bound_ns += one.gain
            one.turn = (one.bound_ns, one.name, 0)

    given = [
        tried("stuck above", 700, 0),
        tried("flagged below", 100, 300, flagged=True),
        tried("plain", 200, 250),
        tried("above all that is left", 900, 0),
    ]
    SearchState.take_further(Search(), given, 4**3 * limits.BOXES, 10.0)  # type: ignore[arg-type]
    first, boxes = limits.BOXES, [limits.BOXES * 4**turn for turn in range(4)]
    assert Search.turns[:3] == [("plain", first), ("stuck above", first), ("flagged below", first)]
    assert Search.turns[3:5] == [("flagged below", boxes[1]), ("plain", boxes[1])]
    # all have come to 700; whoever comes to the least bound of what is left has no more turns
    assert Search.turns[5:7] == [("flagged below", boxes[2]), ("plain", boxes[2])]
    assert Search.turns[7:] == [("stuck above", more) for more in boxes[1:]]
