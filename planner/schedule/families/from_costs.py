"""The list scheduler as a family: any placement of one pipeline, any cap and policy, from nominal costs.

With split backwards and stages dealt round this is out-of-order backprop for pipelines:
- `BFW` is the fast-forwarding of gradients;
- `chunks` is the modulo allocation, whose grain is how many layers a stage gets;
- `pending` and `grain` say how long, and in what lots, weight gradients wait.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import BadInput
from planner.schedule.actions import Schedule
from planner.schedule.build import FamilyRequest, assemble, dealt, zigzag
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import TIES, Limits, ListingJob, Policy, nominal


def listed_family(request: FamilyRequest) -> Schedule:
    """Generates the shortest of several listed orders, one for each tie rule of the request.

    Raises: BadInput for an unknown placement, or caps that not even one micro-batch fits.
    """
    place = _place(request)
    cap = request.whole("cap", request.workers * request.chunks)
    job = ListingJob(
        place=place,
        pipe_of=[0] * request.micros,
        costs=nominal(len(place[0]), request.whole("hop", 0)),
        split=request.flag("split", True),
        limits=Limits(memory=(cap,) * request.workers),
    )
    asked = request.settings.get("tie")
    ties = TIES if asked is None else (str(asked),)
    jobs = [replace(job, policy=_policy(request, tie)) for tie in ties]
    return assemble(request, place, job.pipe_of, best_listed(jobs).orders)


def _place(request: FamilyRequest) -> tuple[tuple[int, ...], ...]:
    shape = request.settings.get("placement", "dealt")
    if shape not in ("dealt", "zigzag"):
        raise BadInput(f"placement is {shape!r}", where=request.family, allowed="dealt, zigzag")
    return (dealt if shape == "dealt" else zigzag)(request.workers, request.chunks)


def _policy(request: FamilyRequest, tie: str) -> Policy:
    return Policy(
        order=str(request.settings.get("order", "BFW")),
        tie=tie,
        pending=request.whole("pending", 0) if "pending" in request.settings else None,
        grain=request.whole("grain", 1),
        patience=request.whole("patience", 0),
    )
