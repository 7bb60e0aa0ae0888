"""The solver's entry: the fastest plan of a profile on a cluster, with its certificate, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from planner.cluster import Cluster
from planner.errors import Infeasible
from planner.milp import infeasible
from planner.milp.configurations.configurations import SEARCHED, Configuration
from planner.milp.instance import Instance, changed
from planner.milp.layer_orders import orders
from planner.milp.question import Asking, Question, space_of
from planner.milp.search.descent import NEVER, judge
from planner.milp.search.search import ranked, thriftier
from planner.milp.search.state import Effort, SearchState
from planner.milp.write_plan import plan_of
from planner.plan import Plan
from planner.profile import Profile
from planner.schedule import FAMILIES

_CHANGED = 20  # shapes looked at for each change that might make an infeasible question feasible


def solve(
    profile: Profile, cluster: Cluster, *, effort: Effort | None = None, **asked: Unpack[Asking]
) -> Plan:
    """The fastest plan that fits, with its certificate; Infeasible says what is missing, and what would fit."""
    return solve_with_search(space_of(profile, cluster, **asked), effort)[0]


def solve_question(question: Question) -> Plan:
    """As `solve`, for a question that was asked before."""
    return solve(
        question.costs,
        question.cluster,
        batch=question.batch,
        schedules=question.schedules,
        fix=dict(question.fix),
        precision=question.precision,
        execution=question.execution,
    )


def solve_with_search(space: Instance, effort: Effort | None = None) -> tuple[Plan, SearchState]:
    """The plan, and the search that found it; Infeasible as `solve`."""
    plan, found = _found(space, effort or Effort())
    if plan is None:
        raise Infeasible(infeasible.report(found.space, found.queue, found.look, _fits))
    return plan, found


def solve_or_none(space: Instance, effort: Effort | None = None) -> Plan | None:
    """As `solve`, without the reasons: None where nothing fits."""
    return _found(space, effort or Effort())[0] if ranked(space) else None


def _found(space: Instance, effort: Effort) -> tuple[Plan | None, SearchState]:
    """Where nothing fits, every family is asked by name, those too that hardly ever pay."""
    found = orders.searched(space, effort)
    plan = _plan(found)
    if plan is None and not space.pins.schedules:
        parts = space.pins.out_of_order is not False
        named = tuple(name for name in SEARCHED if parts or not FAMILIES[name].in_parts)
        found = orders.searched(changed(space, pins=replace(space.pins, schedules=named)), effort)
        plan = _plan(found)
    return plan, found.best


def _plan(found: orders.Searched) -> Plan | None:
    best = found.best.best
    if best is None or best.answer is None:
        return None
    return plan_of(found.best.space, best.problem, best.answer, found.certificate())


def _fits(space: Instance, nearest: infeasible.Nearest | None) -> str | None:
    """The first plan found for a changed question, in words: what came nearest before, else the most promising."""
    found = SearchState(space=space, effort=Effort())
    shapes = ranked(space)
    if nearest is not None and space.pins.stages is None and nearest.shape in _with_variants(space, shapes):
        tried = found.look(nearest.shape)
        if tried is not None and int(judge(tried.problem, nearest.cut[None, :])[0]) < NEVER:
            return str(nearest.shape)
    for shape in shapes[:_CHANGED]:
        for each in _with_variants(space, [shape]):
            tried = found.look(each)
            if tried is not None:
                found.answer(tried)
                if found.best is not None:
                    return str(found.best.shape)
    return None


def _with_variants(space: Instance, given: Sequence[Configuration]) -> list[Configuration]:
    return [each for shape in given for each in (shape, *thriftier(space, shape))]
