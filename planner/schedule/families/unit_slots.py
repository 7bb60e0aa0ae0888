"""Orders that end within a number of slots, where F, I and W take one slot each: a herd of half-random
listings.

All members of the herd are at the same slot. A member is dropped where a worker has idled once too often, or
where an action is ready whose followers can no longer end in time. A copy of another member takes its place.
A single listing seldom takes no wrong turn, but in a herd some member usually does. No worker waits while
anything is ready, so where caps are tight even a herd may find nothing. The draws are seeded: the same
question always has the same answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from planner.schedule.actions import Action
from planner.schedule.build import Place
from planner.schedule.listing.engine import B, F, W, as_actions
from planner.schedule.listing.task import ListingJob

Habit = tuple[int, int, int]
# F or B first; among alike the least: of its number in its pipe, its depth, or any
HABITS = [(first, *tie) for first in (F, B) for tie in ((1, 0), (0, -1), (0, 0), (0, 1))]
WHIMS = (0.3, 0.5, 1.2, 2.0, 0.2)  # workers that start something else than their best in a slot; a try each
SIZES = (12, 32, 64)
EFFORT = 2_000_000  # looks of a member at a node, in all tries together: well below a second
NOW, LATER, LAST = -1e6, 1e6, 1e9  # urgencies of what cannot wait, of the other of F and B, of W
IDLE = -1
Past = tuple["Past", list[int]] | None  # slots so far, last first: node * 3 + kind a worker, or IDLE


@dataclass(frozen=True)
class Member:
    """One half-random listing of the herd, up to the present slot."""

    done: list[int]  # at node * 3 + kind
    held: list[int]  # micro-batches on a worker
    spare: list[int]  # slots that a worker may still idle
    habit: Habit
    past: Past = None


def orders_within_slots(job: ListingJob, least: int, known: int) -> list[list[Action]] | None:
    """Searches compute orders that end within `least` slots, or as soon after as is found.

    Args: `job` has split backwards, F = I = W = 1, no hops, and caps a worker in micro-batches.
    Returns: orders that end in fewer than `known` slots, or None.
    """
    looks = EFFORT
    workers, nodes = 1 + max(map(max, job.place)), sum(map(len, job.place))
    for slots in range(least, known):
        for seed, (size, whim) in enumerate(product(SIZES, WHIMS)):
            size = min(size, looks // (slots * nodes))
            if not size:
                return None
            herd = _Herd(job, slots, whim / workers, random.Random(seed))
            past = herd.run(size)
            if past is not None:
                return as_actions(job, _orders(past))
            looks -= size * nodes * (herd.slot + 1)
    return None


def _orders(past: Past) -> list[list[int]]:
    rows = []
    while past is not None:
        past, row = past
        rows.append(row)
    return [[code for code in column if code != IDLE] for column in zip(*reversed(rows), strict=True)]


class _Herd:
    def __init__(self, job: ListingJob, slots: int, whim: float, draws: random.Random) -> None:
        self.slot, self.slots, self.whim, self.draw = 0, slots, whim, draws.random
        self.stages = len(job.place[0])
        self.room = list(job.limits.memory or ())
        self.nodes_of = _nodes_of(job.place, len(self.room))
        counts = [list(job.pipe_of).count(pipe) for pipe in range(len(job.place))]
        self.total = [count for count in counts for _ in range(self.stages)]
        self.work = [3 * sum(self.total[n] for n, _ in nodes) for nodes in self.nodes_of]
        # the last slot for the next F of a node is this and 2 for each that it has done, for the next I this and 1
        # for each: what comes after waits for the last stage, which needs two slots a micro-batch, or for this one
        places = [(n % self.stages, total) for n, total in enumerate(self.total)]
        self.late_f = [slots - 2 * self.stages + 1 + stage - 2 * total for stage, total in places]
        self.late_b = [slots - 1 - stage - total for stage, total in places]

    def run(self, size: int) -> Past:
        spare = [self.slots - work for work in self.work]
        if min(spare) < 0:
            return None
        start = Member([0] * (3 * len(self.total)), [0] * len(self.room), spare, HABITS[0])
        herd = [replace(start, habit=HABITS[i % len(HABITS)]) for i in range(size)]
        for slot in range(self.slots):
            self.slot = slot
            rows = [(member, row) for member in herd if (row := self._row(member)) is not None]
            if not rows:
                return None
            rows += [rows[int(self.draw() * len(rows))] for _ in range(size - len(rows))]
            herd = [self._after(member, row) for member, row in rows]
        return herd[0].past

    def _row(self, member: Member) -> list[int] | None:
        """Returns what each worker starts in this slot; None where the member cannot end in time."""
        row = []
        for worker in range(len(self.room)):
            ready = self._ready(member, worker)
            if ready is None or (not ready and not member.spare[worker]):
                return None
            if len(ready) > 1 and self.draw() < self.whim:
                row.append(ready[int(self.draw() * len(ready))][1])
            else:
                row.append(min(ready)[1] if ready else IDLE)
        return row

    def _ready(self, member: Member, worker: int) -> list[tuple[float, int]] | None:
        """Returns urgency (the least first) and code of all that can start; None where it is too late for an
        action.
        """
        found: list[tuple[float, int]] = []
        done, last, draw = member.done, self.stages - 1, self.draw
        first, turn, depth = member.habit
        room = member.held[worker] < self.room[worker]
        for n, stage in self.nodes_of[worker]:
            code = 3 * n
            forwards, backwards, weights = done[code : code + 3]
            if room and forwards < self.total[n] and (not stage or done[code - 3] > forwards):
                left = self.late_f[n] + 2 * forwards - self.slot
                if left < 0:
                    return None
                key = (
                    turn * forwards + depth * stage + draw() / 2 + (LATER if first != F else 0)
                    if left
                    else NOW
                )
                found.append((key, code))
            if forwards > backwards and (stage == last or done[code + 4] > backwards):
                left = self.late_b[n] + backwards - self.slot
                if left < 0:
                    return None
                key = (
                    turn * backwards + depth * stage + draw() / 2 + (LATER if first != B else 0)
                    if left
                    else NOW
                )
                found.append((key, code + 1))
            if backwards > weights:
                found.append((LAST + weights - backwards + draw() / 2, code + 2))
        return found

    def _after(self, member: Member, row: list[int]) -> Member:
        done, held, spare = member.done[:], member.held[:], member.spare[:]
        for worker, code in enumerate(row):
            if code == IDLE:
                spare[worker] -= 1
                continue
            done[code] += 1
            kind = code % 3
            held[worker] += (kind == F) - (kind == W)
        return Member(done, held, spare, member.habit, (member.past, row))


def _nodes_of(place: Place, workers: int) -> list[list[tuple[int, int]]]:
    """Returns the nodes of each worker, with their stages."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    for pipe, row in enumerate(place):
        for stage, worker in enumerate(row):
            found[worker].append((pipe * len(row) + stage, stage))
    return found
