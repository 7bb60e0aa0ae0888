"""Chimera with split weight gradients: both directions' I before everything, W wherever a worker would wait.

`cap` is what a worker holds at most, in micro-batches of one stage; D times the stages a direction by default. Which
greedy choice is best depends on the numbers, so a few are listed and the shortest is kept. Caps a (pipe, stage) keep
the directions from crowding each other out. A cap a worker leaves them free to lend each other room.
If all of them end later than the bound says, a herd of half-random listings looks for an order that ends in time. A
cap below the default keeps the bound out of reach; the herd is then not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import BadInput
from planner.schedule.actions import Schedule
from planner.schedule.build import FamilyRequest, assemble
from planner.schedule.families.chimera import numbered, two_ended
from planner.schedule.families.unit_slots import orders_within_slots
from planner.schedule.listing.scheduler import best_listed, bound
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal

SHARED = (
    Policy(tie="micro"),
    Policy(tie="deep"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro", order="FBW"),
    Policy(tie="first"),
    Policy(tie="shallow"),
)
APART = (Policy(tie="deep"), Policy(tie="micro", pending=1))


def chimera_zb(request: FamilyRequest) -> Schedule:
    """Generates Chimera with weight gradients of their own, listed under the cap of the request.

    Raises: BadInput for a cap below 1, or a placement that `two_ended` refuses.
    """
    place = two_ended(request)
    pipe_of: list[int] = []
    for first in range(0, request.micros, request.workers):
        unit = min(request.workers, request.micros - first)
        pipe_of += [pipe for pipe, _, _ in numbered(unit, request.pairs, first)]
    cap = request.whole("cap", request.workers * request.chunks)
    if cap < 1:
        raise BadInput(f"cap is {cap}", where=request.family, allowed="1 or more micro-batches")
    memory = Limits(memory=(cap,) * request.workers)
    job = ListingJob(place=place, pipe_of=pipe_of, costs=nominal(len(place[0])), split=True, limits=memory)
    own = cap // (len(place) * request.chunks)
    apart = replace(memory, flight=((own,) * len(place[0]),) * len(place))

    def jobs() -> Iterator[ListingJob]:
        for policy in SHARED:
            yield replace(job, policy=policy)
        for policy in APART if own else ():
            yield replace(job, policy=policy, limits=apart)

    listing = best_listed(jobs())
    orders = (
        orders_within_slots(job, bound(job), listing.span)
        if cap >= request.workers * request.chunks
        else None
    )
    return assemble(request, place, pipe_of, orders or listing.orders)
