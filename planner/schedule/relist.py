"""Reschedules the work of a schedule for given costs, in the memory that its own order takes.

The first candidate is the order as it is, so the answer is never longer; links are taken as free of queues.
Others come from the list scheduler. The shortest is then repaired: two neighbours on its longest chain change
places where that makes the whole shorter. The search for a swap begins at the end of the chain, keeps the
first that helps and goes on with the new longest chain. It stops where no swap helps, or after a number of
tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import Place, with_recompute
from planner.schedule.families.out_of_order import overlap_of, updated
from planner.schedule.listing.frozen import (
    LEAVES,
    TURNS,
    Played,
    Spot,
    critical,
    fits,
    limits_of,
    most,
    order_fits,
    play,
    span,
    span_of,
)
from planner.schedule.listing.scheduler import Listing, check_job, listed
from planner.schedule.listing.task import Costs, Limits, ListingJob, PerNode, Policy

WORK = (Kind.F, Kind.B, Kind.I, Kind.W)
EFFORT = 100_000  # actions played again while repairing: about half a second
POLICIES = (
    Policy(tie="deep"),
    Policy(tie="micro"),
    Policy(tie="first"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro", order="FBW", patience=25),
    Policy(tie="deep", patience=25),
)


def relistings(schedule: Schedule, costs: Costs, limits: Limits | None = None) -> list[tuple[int, Schedule]]:
    """Makes candidate orders for given costs; the shortest listed one is repaired further.

    Args: `limits` are those that the schedule itself keeps to (`limits_of`) unless given. A stage that the
        schedule recomputes is recomputed in every candidate.
    Returns: (span under `costs`, schedule), shortest first, no two alike.
    Raises: BadInput where costs or limits are of another placement, or not even one micro-batch fits.
    """
    limits = limits_of(schedule) if limits is None else limits
    job = _job(schedule, costs, limits)
    check_job(job)
    listings = list(_listings(schedule, job))
    own = [[a for a in order if a.kind in WORK] for order in schedule.orders]
    fitting = fits(schedule, limits)
    if fitting:
        listings.append(Listing(orders=own, span=span_of(job.place, own, job.costs)))
    if not listings:
        listed(job)  # raises, and shows where
    best = min(listings, key=lambda listing: listing.span).orders
    tries = EFFORT // sum(map(len, best))
    candidates = [_schedule(schedule, listing.orders) for listing in listings]
    candidates.append(_schedule(schedule, polished(job.place, best, job.costs, limits, tries)))
    found = {schedule.orders: schedule} if fitting else {}
    for candidate in candidates:
        found.setdefault(candidate.orders, candidate)
    return sorted(((span(s, costs), s) for s in found.values()), key=lambda pair: pair[0])


def _schedule(schedule: Schedule, orders: Sequence[Sequence[Action]]) -> Schedule:
    kept = {
        name: value for name, value in schedule.settings.items() if name != "late"
    }  # its place is found anew
    settings = {**kept, "relisted": True}
    updates = updated(schedule.place, orders, overlap_of(schedule.settings))
    anew = replace(schedule, orders=updates, settings=settings)
    return with_recompute(anew, _again(schedule))


def _again(schedule: Schedule) -> set[int]:
    return {a.stage for order in schedule.orders for a in order if a.kind is Kind.R}


def _job(schedule: Schedule, costs: Costs, limits: Limits) -> ListingJob:
    return ListingJob(
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        costs=_with_recomputing(costs, _again(schedule)),
        split=any(a.kind is Kind.I for order in schedule.orders for a in order),
        limits=limits,
    )


def _listings(schedule: Schedule, job: ListingJob) -> Iterator[Listing]:
    for each in _jobs(schedule, job):
        try:
            yield listed(each)
        except BadInput:
            continue  # this policy got stuck in the caps


def _jobs(schedule: Schedule, job: ListingJob) -> Iterator[ListingJob]:
    for policy in POLICIES:
        yield replace(job, policy=policy)
    shaped = replace(
        job.limits,
        flight=_tighter(most(schedule, LEAVES), job.limits.flight),
        ahead=_tighter(most(schedule, TURNS), job.limits.ahead),
    )
    for policy in POLICIES[:2]:
        yield replace(job, policy=policy, limits=shaped)
    if job.split:
        halves = {Kind.F: Kind.F, Kind.B: Kind.I, Kind.I: Kind.I}
        turns = [
            [a._replace(kind=halves[a.kind]) for a in order if a.kind in halves] for order in schedule.orders
        ]
        for patience in (0, 25, 60):
            yield replace(job, sequence=turns, policy=Policy(patience=patience))


def _tighter(own: PerNode, given: PerNode | None) -> PerNode:
    if given is None:
        return own
    return tuple(tuple(map(min, mine, theirs)) for mine, theirs in zip(own, given, strict=True))


def _with_recomputing(costs: Costs, again: set[int]) -> Costs:
    extra = [cost if stage in again else 0 for stage, cost in enumerate(costs.of(Kind.R))]
    return replace(
        costs,
        backward=tuple(b + r for b, r in zip(costs.backward, extra, strict=True)),
        input_grad=tuple(i + r for i, r in zip(costs.input_grad, extra, strict=True)),
    )


Orders = list[list[Action]]


def polished(
    place: Place, orders: Sequence[Sequence[Action]], costs: Costs, limits: Limits, tries: int
) -> Orders:
    """Swaps neighbours on the longest chain while that shortens the orders.

    Args: `orders` hold F, B, I and W alone; `tries` is how many swaps are played at most.
    Returns: orders within `limits` that are as short as the given ones or shorter.
    """
    best: Orders = [list(order) for order in orders]
    played = play(place, best, costs)
    while played is not None and tries > 0:
        found, tries = _step(place, best, played, costs, limits, tries)
        if found is None:
            break
        best, played = found
    return best


def _step(
    place: Place, orders: Orders, played: Played, costs: Costs, limits: Limits, tries: int
) -> tuple[tuple[Orders, Played] | None, int]:
    for worker, position in critical(played, orders):
        swapped = _swapped(orders, (worker, position), limits, len(place[0]))
        if swapped is None:
            continue
        tries -= 1
        after = play(place, swapped, costs)
        if after is not None and after.span < played.span:
            return (swapped, after), tries
        if tries == 0:
            break
    return None, tries


def _swapped(orders: Orders, spot: Spot, limits: Limits, stages: int) -> Orders | None:
    """Moves the action at a spot before the one that it follows; None where it needs that one, or room that
    is not there.
    """
    worker, position = spot
    order = orders[worker]
    if position == 0:
        return None
    first, second = order[position - 1], order[position]
    alike = first.kind is second.kind and (first.pipe, first.stage) == (second.pipe, second.stage)
    if alike or _follows(first, second):
        return None
    swapped = [*order[: position - 1], second, first, *order[position + 1 :]]
    takes_room = second.kind is Kind.F or first.kind is not Kind.F
    if takes_room and not order_fits(swapped, worker, limits, stages):
        return None
    return [*orders[:worker], swapped, *orders[worker + 1 :]]


def _follows(first: Action, second: Action) -> bool:
    """Returns whether the second of two neighbours may need the first: both are of one micro-batch.

    A micro-batch goes through F of rising stages, then B or I of falling ones, and each W after its I.
    """
    return (first.micro, first.pipe) == (second.micro, second.pipe) and not (
        first.kind is Kind.W and second.stage != first.stage
    )
