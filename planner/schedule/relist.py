"""List a schedule's work anew for costs that are not nominal, in the memory that its own order takes.

The first candidate is the order as it is, so the answer is never longer than it; links are taken as free of queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import BadInput
from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.assemble import with_recompute, with_updates
from planner.schedule.costs import Costs, Limits, PerNode, PerStage
from planner.schedule.list_job import Job, Policy
from planner.schedule.list_scheduler import listed
from planner.schedule.replay import span

POLICIES = (
    Policy(tie="deep"),
    Policy(tie="micro"),
    Policy(tie="first"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro", order="FBW", patience=25),
    Policy(tie="deep", patience=25),
)


def relist(schedule: Schedule, costs: Costs, limits: Limits | None = None) -> Schedule:
    """The shortest of `relistings`."""
    return relistings(schedule, costs, limits)[0][1]


def relistings(schedule: Schedule, costs: Costs, limits: Limits | None = None) -> list[tuple[int, Schedule]]:
    """Candidate orders with their spans under `costs`, shortest first, no two alike.

    `limits` are those that the schedule itself keeps to (`limits_of`) unless given. A stage that the schedule
    recomputes is recomputed in every candidate.
    """
    own = limits is None
    limits = limits_of(schedule) if limits is None else limits
    found = {schedule.orders: (span(schedule, costs), schedule)} if own or fits(schedule, limits) else {}
    for job in _jobs(schedule, costs, limits):
        try:
            orders = listed(job).orders
        except BadInput:
            continue  # this policy got stuck in the caps
        again = {a.stage for order in schedule.orders for a in order if a.kind is Kind.R}
        candidate = replace(
            schedule,
            orders=with_updates(schedule.place, orders),
            settings={**schedule.settings, "relisted": True},
        )
        candidate = with_recompute(candidate, again)
        if candidate.orders not in found:
            found[candidate.orders] = (span(candidate, costs), candidate)
    if not found:
        listed(next(_jobs(schedule, costs, limits)))  # raises, and shows where
    return sorted(found.values(), key=lambda pair: pair[0])


def _jobs(schedule: Schedule, costs: Costs, limits: Limits) -> Iterator[Job]:
    again = {a.stage for order in schedule.orders for a in order if a.kind is Kind.R}
    job = Job(
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        costs=_with_recomputing(costs, again),
        split=any(a.kind is Kind.I for order in schedule.orders for a in order),
        limits=limits,
    )
    for policy in POLICIES:
        yield replace(job, policy=policy)
    shaped = replace(
        limits, flight=_most(schedule, (Kind.B, Kind.W)), ahead=_most(schedule, (Kind.B, Kind.I))
    )
    for policy in POLICIES[:2]:
        yield replace(job, policy=policy, limits=shaped)
    if job.split:
        turns = [
            [_halved(a) for a in order if a.kind in (Kind.F, Kind.B, Kind.I)] for order in schedule.orders
        ]
        yield replace(job, sequence=turns)


def _halved(action: Action) -> Action:
    return action._replace(kind=Kind.I) if action.kind is Kind.B else action


def _with_recomputing(costs: Costs, again: set[int]) -> Costs:
    extra = [cost if stage in again else 0 for stage, cost in enumerate(costs.of(Kind.R))]
    return replace(
        costs,
        backward=tuple(b + r for b, r in zip(costs.backward, extra, strict=True)),
        input_grad=tuple(i + r for i, r in zip(costs.input_grad, extra, strict=True)),
    )


def limits_of(schedule: Schedule, keep: PerStage | None = None, held: PerStage | None = None) -> Limits:
    """Caps that let a worker hold what it holds at most in this schedule, and no more."""
    bare = Limits(keep=keep, held=held)
    return replace(bare, memory=tuple(weights(schedule, bare)))


def fits(schedule: Schedule, limits: Limits) -> bool:
    rooms = limits.memory
    if rooms is not None and any(w > room for w, room in zip(weights(schedule, limits), rooms, strict=True)):
        return False
    pairs = ((limits.flight, (Kind.B, Kind.W)), (limits.ahead, (Kind.B, Kind.I)))
    return all(
        caps is None
        or all(
            m <= c
            for most, cap in zip(_most(schedule, ends), caps, strict=True)
            for m, c in zip(most, cap, strict=True)
        )
        for caps, ends in pairs
    )


def weights(schedule: Schedule, limits: Limits) -> list[int]:
    """The most that each worker holds: `keep` from F to B, or to I, and `held` from I to W."""
    keep = limits.keep or (1,) * schedule.stages
    held = limits.held or keep
    found = []
    for order in schedule.orders:
        now = most = 0
        for action in order:
            stage = action.stage
            if action.kind is Kind.F:
                now += keep[stage]
            elif action.kind is Kind.B:
                now -= keep[stage]
            elif action.kind is Kind.I:
                most = max(most, now - keep[stage] + held[stage])
                now += held[stage] - keep[stage]
            elif action.kind is Kind.W:
                now -= held[stage]
            most = max(most, now)
        found.append(most)
    return found


def _most(schedule: Schedule, ends: tuple[Kind, ...]) -> PerNode:
    """Most micro-batches that each (pipe, stage) has between F and an action of `ends`."""
    now = [[0] * schedule.stages for _ in schedule.place]
    most = [[1] * schedule.stages for _ in schedule.place]
    for order in schedule.orders:
        for action in order:
            if action.kind is Kind.F:
                now[action.pipe][action.stage] += 1
                most[action.pipe][action.stage] = max(
                    most[action.pipe][action.stage], now[action.pipe][action.stage]
                )
            elif action.kind in ends:
                now[action.pipe][action.stage] -= 1
    return tuple(map(tuple, most))
