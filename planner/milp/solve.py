"""The solver's entry: the fastest plan of a profile on a cluster, with its certificate, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import Infeasible
from planner.milp import infeasible
from planner.milp.configurations.configurations import SEARCHED, Configuration
from planner.milp.instance import Instance, changed
from planner.milp.layer_orders import orders
from planner.milp.limits import Effort
from planner.milp.question import Question
from planner.milp.search.descent import UNFIT_NS, judge
from planner.milp.search.search import ranked, thriftier
from planner.milp.search.state import SearchState
from planner.milp.uneven import uneven
from planner.milp.write_plan import plan_of
from planner.plan import Plan
from planner.schedule import FAMILIES

_CHANGED = 20  # configurations looked at for each change that might make an infeasible question feasible


def solve(question: Question) -> Plan:
    """Returns the fastest plan that fits, with its certificate.

    Args: `question` says what is trained, on which machines, with what fixed.
    Raises: BadInput where the question means nothing; Infeasible says what is missing, and what would fit.
    Example: `solve(Question(profile=profiles.load(path), cluster=Cluster.load("cluster.yaml"), batch=64))`
    """
    return solve_with_search(question.instance(), question.effort)[0]


def solve_with_search(instance: Instance, effort: Effort | None = None) -> tuple[Plan, SearchState]:
    """Returns the fastest plan and the search that found it.

    Raises: Infeasible as `solve`.
    """
    plan, search = _search(instance, effort or Effort())
    plan = _with_shares(instance, plan, effort or Effort())
    if plan is None:
        raise Infeasible(infeasible.report(search.instance, search.queue, search.look, _fits))
    return plan, search


def solve_or_none(instance: Instance, effort: Effort | None = None) -> Plan | None:
    """Returns the fastest plan, or None without reasons where nothing fits.

    Args: `instance` may come from `Question.instance` or `changed`.
    """
    found = _search(instance, effort or Effort())[0] if ranked(instance) else None
    return _with_shares(instance, found, effort or Effort())


def _with_shares(instance: Instance, best: Plan | None, effort: Effort) -> Plan | None:
    """Returns the fastest plan, with uneven shares where replicas on devices of different speed gain by them."""

    def alike(posed: Instance) -> Plan | None:
        return _search(posed, effort)[0] if ranked(posed) else None

    return best and (uneven(instance, best, alike) or best)


def _search(instance: Instance, effort: Effort) -> tuple[Plan | None, SearchState]:
    """Returns the plan, if any, and its search.

    Where nothing fits, every family is asked for by name, those too that hardly ever pay.
    """
    searched = orders.searched(instance, effort)
    plan = _plan(searched)
    if plan is None and not instance.pins.schedules:
        parts = instance.pins.out_of_order is not False
        named = tuple(name for name in SEARCHED if parts or not FAMILIES[name].in_parts)
        every = changed(instance, pins=replace(instance.pins, schedules=named))
        searched = orders.searched(every, effort)
        plan = _plan(searched)
    return plan, searched.best


def _plan(searched: orders.Searched) -> Plan | None:
    best = searched.best.best
    if best is None or best.answer is None:
        return None
    return plan_of(searched.best.instance, best.problem, best.answer, searched.certificate())


def _fits(instance: Instance, nearest: infeasible.Nearest | None) -> str | None:
    """Returns the first plan found for a changed question, in words.

    What came nearest before is looked at first, then the most promising configurations.
    """
    state = SearchState(instance=instance, effort=Effort())
    configurations = ranked(instance)
    free = nearest is not None and instance.pins.stages is None
    if nearest is not None and free and nearest.shape in _with_variants(instance, configurations):
        tried = state.look(nearest.shape)
        if tried is not None and int(judge(tried.problem, nearest.cut[None, :])[0]) < UNFIT_NS:
            return str(nearest.shape)
    for configuration in configurations[:_CHANGED]:
        for each in _with_variants(instance, [configuration]):
            tried = state.look(each)
            if tried is not None:
                state.answer(tried)
                if state.best is not None:
                    return str(state.best.shape)
    return None


def _with_variants(instance: Instance, configurations: Sequence[Configuration]) -> list[Configuration]:
    return [each for shape in configurations for each in (shape, *thriftier(instance, shape))]
