"""ZB-V, V-Half and V-Min: two stages a worker in a V, split backwards, and a cap on what a worker holds.

Caps count micro-batches of one stage, two to a worker's full share: 2D for ZB-V, about a half and a third of that
for the others. ZB-V comes out of the list scheduler. The small caps need a rhythm: one micro-batch's way through the
V, repeated every 6 slots (F, I and W of two stages) without a collision, keeps every worker's share even; the order
of its F and I is then kept and the weight gradients are listed into what is free. The best of both is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import BadInput
from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.assemble import Request, assemble, zigzag
from planner.schedule.costs import Limits, nominal
from planner.schedule.list_job import Job, Policy
from planner.schedule.list_scheduler import best_listed

Steps = tuple[
    int, int, int, int
]  # slots from worker to worker: down and up the V forwards, down and up backwards
PERIOD = 6
FEW = 8  # workers up to which a free list may beat the rhythm
POLICIES = (
    Policy(tie="deep"),
    Policy(tie="deep", order="BWF"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro"),
    Policy(tie="micro", order="FBW"),
)


def zb_v(request: Request) -> Schedule:
    return listed_v(request, 2 * request.workers)


def v_half(request: Request) -> Schedule:
    return listed_v(request, (request.workers + 2) // 2 * 2, ((1, 2, 1, 2), (2, 2, 1, 1)))


def v_min(request: Request) -> Schedule:
    return listed_v(request, (request.workers + 4) // 3 * 2, ((1, 1, 1, 1), (1, 2, 1, 2)))


def listed_v(request: Request, cap: int, steps: tuple[Steps, ...] = ()) -> Schedule:
    cap = request.whole("cap", cap)
    if cap < 2:
        raise BadInput(
            f"cap is {cap}",
            where=request.family,
            allowed="2 or more: a micro-batch on both stages of a worker",
        )
    place = zigzag(request.workers, 2)
    job = Job(
        place=place,
        pipe_of=[0] * request.micros,
        costs=nominal(2 * request.workers),
        split=True,
        limits=Limits(memory=(cap,) * request.workers),
    )

    def jobs() -> Iterator[Job]:
        for each in steps:
            yield replace(job, sequence=_repeated(place[0], request.micros, each))
        for policy in POLICIES if not steps or request.workers <= FEW else ():
            yield replace(job, policy=policy)

    return assemble(request, place, job.pipe_of, best_listed(jobs()).orders)


def _repeated(place: tuple[int, ...], micros: int, steps: Steps) -> list[list[Action]]:
    forward, backward = _way(place, steps)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(1 + max(place))]
    for stage, worker in enumerate(place):
        for m in range(micros):
            slots[worker].append((forward[stage] + PERIOD * m, Action(Kind.F, stage, m)))
            slots[worker].append((backward[stage] + PERIOD * m, Action(Kind.I, stage, m)))
    return [[action for _, action in sorted(worker)] for worker in slots]


def _way(place: tuple[int, ...], steps: Steps) -> tuple[list[int], list[int]]:
    """Slots of the first micro-batch's F and I, a stage: the earliest that are free on the worker, modulo PERIOD."""
    stages = len(place)
    taken: list[set[int]] = [set() for _ in range(stages // 2)]
    rows: list[list[int]] = []
    slot = 0
    for legs, path in ((steps[:2], range(stages)), (steps[2:], range(stages - 1, -1, -1))):
        row = [0] * stages
        for walked, stage in enumerate(path):
            while slot % PERIOD in taken[place[stage]]:
                slot += 1
            taken[place[stage]].add(slot % PERIOD)
            row[stage] = slot
            turning = walked in (stages // 2 - 1, stages - 1)
            slot += 1 if turning else legs[walked >= stages // 2]
        rows.append(row)
    return rows[0], rows[1]
