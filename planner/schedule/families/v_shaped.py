"""Families whose pipeline turns: ZB-V, V-Half, V-Min, the wave and DualPipe-V.

ZB-V, V-Half and V-Min: two stages a worker in a V, split backwards, and a cap on what a worker holds.

Caps count micro-batches of one stage, two to a worker's full share: 2D for ZB-V, about a half and a third of that
for the others. A rhythm is tried first: an order of F and I that is kept, with the weight gradients listed into what
is free. ZB-V fills its share and then takes F and I of both stages in turn, so that every message has slack when it
is needed. The small caps repeat one micro-batch's way through the V every 6 slots (F, I and W of two stages) without
a collision, which keeps every worker's share even. Free lists compete with the rhythm; the best is taken.

The wave schedule: one pipeline that zig-zags over the workers, in Chimera's slots without its replicas.

With v stages a worker there are S = vD stages. F of stage s is at slot 2m + s, B at 2m + 2S - 1 - s, for units of D
micro-batches, unit k shifted by 2S. Where the last of several units is not full, the order is listed if that is
shorter. Neighbouring stages at the turns share a worker, as do the first and, for even v, the last. Ties between them
and skips across the turn are local.

DualPipe-V: two stages a worker in a V, forwards of one paired with backwards of the other.

The paired F and B stand next to each other, for an executor that overlaps them. Weight gradients are split off only
where they fill the start and the end. With fewer than 2D micro-batches there is no steady phase to pair; the order
is then listed under the same memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble, zigzag
from planner.schedule.families.chimera import shorter
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal

Steps = tuple[
    int, int, int, int
]  # slots from worker to worker: down and up the V forwards, down and up backwards
Turns = list[list[Action]]
F, I = Kind.F, Kind.I  # noqa: E741
PERIOD = 6
FEW = 8  # workers up to which a free list may beat the rhythm
POLICIES = (
    Policy(tie="deep"),
    Policy(tie="deep", order="BWF"),
    Policy(tie="deep", order="FBW"),
    Policy(tie="micro"),
    Policy(tie="micro", order="FBW"),
)


def zb_v(request: FamilyRequest) -> Schedule:
    """Generates ZB-V: two stages a worker in a V, in the memory of 1F1B.

    Args: `request` may set `cap`, in micro-batches of one stage.
    """
    return listed_v(request, 2 * request.workers, [_in_turn(request.workers, request.micros)], POLICIES)


def v_half(request: FamilyRequest) -> Schedule:
    """Generates V-Half: a V in about half of the memory of ZB-V.

    Args: `request` may set `cap`, in micro-batches of one stage.
    """
    return _in_small_share(request, (request.workers + 2) // 2 * 2, ((1, 2, 1, 2), (2, 2, 1, 1)))


def v_min(request: FamilyRequest) -> Schedule:
    """Generates V-Min: a V in about a third of the memory of ZB-V.

    Args: `request` may set `cap`, in micro-batches of one stage.
    """
    return _in_small_share(request, (request.workers + 4) // 3 * 2, ((1, 1, 1, 1), (1, 2, 1, 2)))


def _in_small_share(request: FamilyRequest, cap: int, steps: Sequence[Steps]) -> Schedule:
    row = zigzag(request.workers, 2)[0]
    rhythms = [_repeated(row, request.micros, each) for each in steps]
    return listed_v(request, cap, rhythms, POLICIES if request.workers <= FEW else ())


def listed_v(
    request: FamilyRequest, cap: int, rhythms: Sequence[Turns] = (), policies: Sequence[Policy] = POLICIES
) -> Schedule:
    """Generates a V by the list scheduler, from fixed turns of F and I and from free lists.

    Args: `cap` is the default cap on micro-batches of one stage; `rhythms` are fixed turns, one a worker.
    Raises: BadInput for a cap below 2.
    """
    cap = request.whole("cap", cap)
    if cap < 2:
        raise BadInput(
            f"cap is {cap}",
            where=request.family,
            allowed="2 or more: a micro-batch on both stages of a worker",
        )
    place = zigzag(request.workers, 2)
    job = ListingJob(
        place=place,
        pipe_of=[0] * request.micros,
        costs=nominal(2 * request.workers),
        split=True,
        limits=Limits(memory=(cap,) * request.workers),
    )

    def jobs() -> Iterator[ListingJob]:
        for rhythm in rhythms:
            yield replace(job, sequence=rhythm)
        for policy in policies:
            yield replace(job, policy=policy)

    return assemble(request, place, job.pipe_of, best_listed(jobs()).orders)


def _in_turn(workers: int, micros: int) -> Turns:
    """Returns turns that go down the V as long as the share lasts, then up as micro-batches turn, then F, I,
    F, I.
    """
    orders = []
    for worker in range(workers):
        down, up = (partial(Action, stage=stage) for stage in (worker, 2 * workers - 1 - worker))
        turns = [down(F)] * (2 * (workers - worker) - 1) + [up(F), down(F)] * worker
        turns += [up(F), up(I)] * (workers - worker) + [down(F), down(I), up(F), up(I)] * micros
        turns += [down(I), up(I)] * micros
        orders.append(_numbered(turns, micros))
    return orders


def _numbered(turns: Sequence[Action], micros: int) -> list[Action]:
    """Repeats the turns for micro-batch after micro-batch and leaves out those past the last one."""
    count: Counter[Action] = Counter()
    order = []
    for turn in turns:
        if count[turn] < micros:
            order.append(turn._replace(micro=count[turn]))
        count[turn] += 1
    return order


def _repeated(place: tuple[int, ...], micros: int, steps: Steps) -> Turns:
    forward, backward = _way(place, steps)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(1 + max(place))]
    for stage, worker in enumerate(place):
        for m in range(micros):
            slots[worker].append((forward[stage] + PERIOD * m, Action(Kind.F, stage, m)))
            slots[worker].append((backward[stage] + PERIOD * m, Action(Kind.I, stage, m)))
    return [[action for _, action in sorted(worker)] for worker in slots]


def _way(place: tuple[int, ...], steps: Steps) -> tuple[list[int], list[int]]:
    """Returns the slots of the first micro-batch's F and I, a stage: the earliest free on the worker, modulo
    PERIOD.
    """
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


def dualpipe_v(request: FamilyRequest) -> Schedule:
    """Generates the DualPipe-V schedule, listed instead where there are fewer than 2D micro-batches.

    Args: `request` may set `cap` for the listed order.
    """
    workers, micros = request.workers, request.micros
    if micros < 2 * workers:
        return listed_v(request, 2 * workers + 2)
    orders = [_Worker(worker, workers).order(micros) for worker in range(workers)]
    return assemble(request, zigzag(workers, 2), [0] * micros, orders)


class _Worker:
    def __init__(self, worker: int, workers: int) -> None:
        self.after = workers - 1 - worker  # workers behind this one on the way down
        self.through = worker + 1
        self.workers = workers
        self.stage = (worker, 2 * workers - 1 - worker)
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.waiting: deque[Action] = deque()
        self.done: list[Action] = []

    def order(self, micros: int) -> list[Action]:
        self._fill()
        for _ in range(micros - 2 * self.workers + self.through):
            self._f(0)
            self._b(1)
            self._f(1)
            self._b(0)
        for _ in range(self.after):
            self._b(1)
            self._f(1)
            self._b(0)
        self._drain()
        return self.done

    def _fill(self) -> None:
        for _ in range(2 * self.after):
            self._f(0)
        for _ in range(self.through):
            self._f(0)
            self._f(1)
        for _ in range(self.after):
            self._i(1)
            self._w()
            self._f(1)

    def _drain(self) -> None:
        """Sends the first half of what is left back whole, and of the second half only its input half."""
        for turn in range(2 * self.through):
            chunk = 1 - turn % 2
            if turn < self.through:
                self._b(chunk)
            else:
                self._i(chunk)
        for _ in range(self.after):
            self._w()
            self._i(0)
        while self.waiting:
            self._w()

    def _f(self, chunk: int) -> None:
        self.done.append(Action(Kind.F, self.stage[chunk], self.forwards[chunk]))
        self.forwards[chunk] += 1

    def _b(self, chunk: int) -> None:
        self.done.append(Action(Kind.B, self.stage[chunk], self.backwards[chunk]))
        self.backwards[chunk] += 1

    def _i(self, chunk: int) -> None:
        action = Action(Kind.I, self.stage[chunk], self.backwards[chunk])
        self.done.append(action)
        self.waiting.append(action)
        self.backwards[chunk] += 1

    def _w(self) -> None:
        self.done.append(self.waiting.popleft()._replace(kind=Kind.W))
