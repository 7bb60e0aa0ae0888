"""The wave schedule: one pipeline that zig-zags over the workers, in Chimera's slots without its replicas.

With v stages a worker there are S = vD stages. F of stage s is at slot 2m + s, B at 2m + 2S - 1 - s, for units of D
micro-batches, unit k shifted by 2S. Where the last of several units is not full, the order is listed if that is
shorter. Neighbouring stages at the turns share a worker, as do the first and, for even v, the last. Ties between them
and skips across the turn are local.
"""

from __future__ import annotations

from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble, zigzag
from planner.schedule.families.two_ended_slots import shorter


def wave(request: FamilyRequest) -> Schedule:
    """Generates the wave schedule with `chunks` stages a worker.

    Args: `request.micros` may be any number.
    """
    place = zigzag(request.workers, request.chunks)
    stages = len(place[0])
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(request.workers)]
    for micro in range(request.micros):
        unit, m = divmod(micro, request.workers)
        start = 2 * stages * unit + 2 * m
        for stage, worker in enumerate(place[0]):
            slots[worker].append((start + stage, Action(Kind.F, stage, micro)))
            slots[worker].append((start + 2 * stages - 1 - stage, Action(Kind.B, stage, micro)))
    orders = [[action for _, action in sorted(worker)] for worker in slots]
    if request.micros > request.workers and request.micros % request.workers:
        orders = shorter(place, [0] * request.micros, orders, stages)
    return assemble(request, place, [0] * request.micros, orders)
