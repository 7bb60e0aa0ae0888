"""Explains a plan: what its step is made of, what its rivals lose, what more memory would give, near-ties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from planner.cluster import Slot, all_reduce, card_sharers, measured_sums, spread, with_more
from planner.cost import INDEX_BYTES
from planner.explore.scaling import Lemma, computing_ns, overhead
from planner.kept import WHOLE
from planner.milp import (
    Question,
    SearchState,
    changed,
    configuration_of,
    parts_ns,
    solve_or_none,
    solve_with_search,
)
from planner.plan import Plan, PlannedConfiguration
from planner.profile import Profile
from planner.proof import ConfigurationState
from planner.schedule import FAMILIES
from planner.sums import today

GIB = 1 << 30
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class PlanParts:
    """A plan that was looked at, and what its step is made of, in nanoseconds."""

    configuration: PlannedConfiguration
    step_ns: int
    parts_ns: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class MoreMemory:
    """The fastest plan with more memory on each device."""

    more_bytes: int
    step_ns: int
    configuration: PlannedConfiguration
    free_bytes: int  # of the fullest device, with the memory there is


@dataclass(frozen=True, kw_only=True)
class PrunedState:
    """What pruning changes: the state of a parameter in bytes, and the fastest plan of the same model unpruned."""

    bytes_each: float
    dense_bytes_each: float
    dense: Plan | None  # None where it does not fit


@dataclass(frozen=True, kw_only=True)
class StageSums:
    """The sum of gradients of one stage, as each way takes that was measured between its ranks."""

    stage: int
    ranks: int
    bytes: int
    name: str  # of the way that the plan takes
    ns: Mapping[str, int]  # by name, the fastest first


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A plan with what its search has shown beside it."""

    plan: Plan
    chosen: PlanParts
    runners_up: tuple[PlanParts, ...]  # the best plan of each other family that was answered
    within_error: tuple[
        PlanParts, ...
    ]  # plans of the search that the errors of the costs do not tell from this one
    error: float  # of the costs, as a share, as far as the error bar shows it
    within: float  # the largest share by which another plan may be faster, if every cost is off by at most `error`
    room: MoreMemory | None  # None where the search was stopped before
    overhead: Lemma | None
    in_one: PlanParts | None = (
        None  # where gradients are summed in parts: the same plan with one sum a device
    )
    pruned: PrunedState | None = None  # where weights are pruned
    sums: StageSums | None = None  # of the stage whose sum takes longest, where sums were measured


def explain(question: Question, *, more_bytes: int = GIB) -> Explanation:
    """Solves the question and explains its plan.

    Args: `more_bytes` on each device are what the explanation tries besides.
    Returns: the plan that `solve` finds, what its step is made of, its rivals and near-ties.
    Raises: Infeasible where nothing fits, BadInput where the question does not match its profile.
    """
    instance = question.instance()
    plan, found = solve_with_search(instance, question.effort)
    assert found.best is not None
    error = error_of(plan)
    within = 2 * error / (1 - error) if error < 1 else float("inf")
    larger = changed(instance, cluster=with_more(question.cluster, more_bytes))
    room: MoreMemory | None = None
    pruned: PrunedState | None = None
    with suppress(KeyboardInterrupt), question.effort.watch.aside():
        room = _room(plan, solve_or_none(larger, question.effort), more_bytes)
        pruned = _pruned(question) if question.profile.kept.counts else None
    return Explanation(
        plan=plan,
        chosen=_shared_out(plan) if plan.batch.shares else _part(found.best),
        runners_up=(*([_part(found.best)] if plan.batch.shares else []), *_runners_up(found)),
        within_error=tuple(_near(found, found.limit * (1 + within))),
        error=error,
        within=(1 + within) * _over_bound(plan) - 1,
        room=room,
        overhead=overhead(plan),
        in_one=_in_one(found),
        pruned=pruned,
        sums=_sums(question, plan, found),
    )


def _over_bound(plan: Plan) -> float:
    """Returns the plan's step as a multiple of its lower bound: 1 where it is proved fastest."""
    proof = plan.certificate
    if proof is None or not proof.bound_ns:
        return float("inf")
    return max(1.0, proof.objective_ns / proof.bound_ns)


def _sums(question: Question, plan: Plan, found: SearchState) -> StageSums | None:
    """Returns the sum that takes longest, among those that nobody shares; None where no sum was measured there."""
    best, machines = found.best, question.cluster
    if best is None or best.answer is None or best.shape.shard or best.shape.held or plan.batch.shares:
        return None
    posed = best.problem.settled(best.answer.cut)
    sizes = posed.own_bytes(best.answer.cut[:-1], best.answer.cut[1:])
    groups = [_holders(plan, stage) for stage in range(len(plan.stages))]
    sharers, rows = card_sharers(machines, groups), list[StageSums]()
    for stage, (group, size) in enumerate(zip(groups, sizes.tolist(), strict=True)):
        over = spread(machines, group)
        took = {
            name: int(
                all_reduce(machines, over, "free", pinned=name, sharers=sharers).ns(np.array([size]))[0]
            )
            for name in measured_sums(machines, over)
        }
        own = plan.sums.by[stage] if plan.sums is not None else str(today(len(group)))
        if size and own in took:
            fastest = dict(sorted(took.items(), key=lambda row: row[1]))
            rows.append(StageSums(stage=stage, ranks=len(group), bytes=size, name=own, ns=fastest))
    return max(rows, key=lambda row: row.ns[row.name], default=None)


def _holders(plan: Plan, stage: int) -> list[Slot]:
    """Returns the devices of the ranks that hold a stage."""
    workers = {row[stage] for row in plan.schedule.place}
    return [Slot(place.node, place.slot) for place in plan.places if place.pipeline in workers]


def _pruned(question: Question) -> PrunedState:
    profile = question.profile
    whole = replace(profile, kept=WHOLE)
    dense = solve_or_none(replace(question, profile=whole).instance(), question.effort)
    held = question.instance().profile
    return PrunedState(
        bytes_each=_bytes_each(held), dense_bytes_each=_bytes_each(replace(held, kept=WHOLE)), dense=dense
    )


def _bytes_each(profile: Profile) -> float:
    """Returns the bytes of weight, gradient, state and indices of a trained parameter, on average over its elements."""
    kept, total, elements = profile.kept.counts, 0.0, 0
    for row in profile.graph.trained:
        size = prod(row.shape)
        stay = kept.get(row.name, size)
        each = row.bytes // max(1, size)
        total += row.bytes // 2 if row.name in profile.halved else row.bytes
        total += stay * (each + profile.optimizer.state_bytes_per_parameter)
        total += stay * each if row.name in kept or row.name in profile.halved else 0
        total += stay * INDEX_BYTES if row.name in kept else 0
        elements += size
    return total / max(1, elements)


def error_of(plan: Plan) -> float:
    """Returns the relative error of a plan's predicted step.

    Args: `plan` carries an error bar, `low_ns` to `high_ns`.
    Returns: the larger distance of the bar's ends from the prediction, as a share of it.
    """
    seen = plan.prediction
    return max(seen.high_ns - seen.step_ns, seen.step_ns - seen.low_ns) / max(seen.step_ns, 1)


def _part(tried: ConfigurationState) -> PlanParts:
    assert tried.answer is not None
    return PlanParts(
        configuration=configuration_of(tried.shape),
        step_ns=tried.answer.ns,
        parts_ns=parts_ns(tried.problem, tried.answer),
    )


def _shared_out(plan: Plan) -> PlanParts:
    """Returns what the step of a plan with uneven shares is made of, on its first replica."""
    proof = plan.certificate
    assert proof is not None and proof.chosen is not None and proof.chosen.configuration is not None
    step_ns, busy_ns = plan.prediction.step_ns, computing_ns(plan)
    parts = {"computing": busy_ns, "waiting, sums and messages": step_ns - busy_ns}
    return PlanParts(configuration=proof.chosen.configuration, step_ns=step_ns, parts_ns=parts)


def _others(found: SearchState) -> list[ConfigurationState]:
    """Returns the configurations with an answer other than the best, the fastest first."""
    others = [tried for tried in found.tried.values() if tried.answer is not None and tried is not found.best]
    return sorted(others, key=lambda tried: (tried.answer.ns if tried.answer else 0, tried.shape))


def _in_one(found: SearchState) -> PlanParts | None:
    assert found.best is not None
    shape = found.best.shape
    if not FAMILIES[shape.family].mixes:
        return None
    some = bool(shape.chosen)
    tried = found.look(replace(shape, family="1f1b", chunks=1, listed="", chosen=(), sparing=some))
    if tried is not None and tried.answer is None:
        found.answer(tried)
    return None if tried is None or tried.answer is None else _part(tried)


def _runners_up(found: SearchState) -> Iterator[PlanParts]:
    assert found.best is not None
    seen = {found.best.shape.family}
    for tried in _others(found):
        if tried.shape.family not in seen and len(seen) <= _SHOWN:
            seen.add(tried.shape.family)
            yield _part(tried)


def _near(found: SearchState, limit_ns: float) -> Iterator[PlanParts]:
    """Yields near-ties: each configuration once, in the fastest of its orders."""
    near = [tried for tried in _others(found) if tried.answer is not None and tried.answer.ns <= limit_ns]
    assert found.best is not None
    firsts: dict[str, ConfigurationState] = {}
    for tried in (found.best, *near):
        firsts.setdefault(str(replace(tried.shape, listed="", chosen=())), tried)
    yield from [_part(tried) for tried in firsts.values()][1 : 1 + _SHOWN]


def _room(plan: Plan, roomier: Plan | None, more_bytes: int) -> MoreMemory:
    free = min(m.limit - m.total for m in plan.prediction.memory)
    faster = roomier is not None and roomier.prediction.step_ns < plan.prediction.step_ns
    best = roomier if roomier is not None and faster else plan
    proof = best.certificate
    assert proof is not None and proof.chosen is not None and proof.chosen.configuration is not None
    return MoreMemory(
        more_bytes=more_bytes,
        step_ns=best.prediction.step_ns,
        configuration=proof.chosen.configuration,
        free_bytes=free,
    )
