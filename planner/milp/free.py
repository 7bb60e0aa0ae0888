"""What no order of the same actions on the same workers can beat, for one cut.

Each worker is a machine on its own, each action a job with a head (what must come before it anywhere) and a tail (what
must come after it anywhere); the preemptive schedule that always works on the job with the longest tail is the best
there is for a machine, and Jackson's bound is its length. Heads and tails are those of one micro-batch through the
stages and back, messages included, with the sum of the stage at the end. They are staggered: the k-th micro-batch
to reach a stage has waited for k - 1 others at the slowest stage before it, and the k-th last one is followed by
k - 1 others at the slowest stage after it. Micro-batches are alike, so that this holds in whatever order they come.

The sums of a worker are a machine too: none starts before all of its stage is done. Updates follow when everything is
done. Under a rolling update only loads count, and the way of one micro-batch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.cost import IntArray
from planner.milp.problem import Problem
from planner.milp.stages import KINDS
from planner.schedule.action import Kind

_ONCE = (Kind.SYNC, Kind.STEP)


@dataclass(frozen=True, kw_only=True)
class Job:
    head: int
    takes: int
    tail: int


def free_bound_ns(posed: Problem, cut: IntArray) -> int:
    return _Free(posed, cut).bound_ns()


class _Free:
    def __init__(self, posed: Problem, cut: IntArray) -> None:
        self.posed, self.chained = posed, posed.chained
        spans = posed.durations(cut)
        self.take = {kind: spans.kinds[0, KINDS.index(kind)].tolist() for kind in KINDS}
        self.wire: IntArray = np.zeros(2 * posed.stages**2, np.int64)
        self.wire[spans.cells] = spans.hop_ns[0]
        self.wire = self.wire.reshape(2, posed.stages, posed.stages)
        self.counts = [
            Counter((action.pipe, action.stage, action.kind) for action in order)
            for order in posed.schedule.orders
        ]
        self.sizes = Counter(posed.schedule.pipe_of)

    def bound_ns(self) -> int:
        steps = [self._load(counts, (Kind.STEP,)) for counts in self.counts]
        work = tuple(kind for kind in KINDS if kind not in _ONCE)
        loads = [self._load(counts, work) for counts in self.counts]
        chain = max(_Pipe(self, pipe).chain for pipe in self.sizes) if self.chained else 0
        if self.posed.shape.update == "rolling":
            return max(chain, *(a + b for a, b in zip(loads, steps, strict=True)))
        pipes = {pipe: _Pipe(self, pipe) for pipe in self.sizes}
        machines = [
            jackson(
                [job for key, n in counts.items() if key[2] in work for job in pipes[key[0]].jobs(key, n)]
            )
            for counts in self.counts
        ]
        return max(chain, *machines, *self._sums(pipes)) + max(steps)

    def _load(self, counts: Counter[tuple[int, int, Kind]], kinds: Sequence[Kind]) -> int:
        return sum(n * self.take[kind][stage] for (_, stage, kind), n in counts.items() if kind in kinds)

    def _sums(self, pipes: dict[int, _Pipe]) -> list[int]:
        """Of every worker: when the last of its sums is done."""
        ready = [max(pipe.done[s] for pipe in pipes.values()) for s in range(self.posed.stages)]
        found = []
        for counts in self.counts:
            at = 0
            for s in sorted({stage for _, stage, kind in counts if kind is Kind.SYNC}, key=ready.__getitem__):
                at = max(at, ready[s]) + self.take[Kind.SYNC][s]
            found.append(at)
        return found


class _Pipe:
    """Heads and tails of the stages of one pipe."""

    def __init__(self, free: _Free, pipe: int) -> None:
        self.take, self.stages, self.micros = free.take, free.posed.stages, free.sizes[pipe]
        self.chained, self.place = free.chained, free.posed.schedule.place[pipe]
        own: set[tuple[int, Kind]] = {(s, k) for counts in free.counts for p, s, k in counts if p == pipe}
        self.kinds = [{kind for s, kind in own if s == stage} for stage in range(self.stages)]
        self.wire = free.wire
        self.forward = self.take[Kind.F]
        self.back = [self._back(s) for s in range(self.stages)]

    def _back(self, s: int) -> int:
        """What hands the gradient on: the whole backward or its first half, the shorter where both are."""
        return min((self.take[kind][s] for kind in (Kind.B, Kind.I) if kind in self.kinds[s]), default=0)

    def _late(self, s: int) -> int:
        return 0 if Kind.B in self.kinds[s] else self.take[Kind.W][s]

    def _hop(self, way: int, a: int, b: int) -> int:
        return 0 if self.place[a] == self.place[b] else int(self.wire[way, a, b])

    @cached_property
    def ahead(self) -> list[int]:
        """Before the first forward of a stage."""
        found = [0]
        for s in range(1, self.stages):
            found.append(found[-1] + self.forward[s - 1] + self._hop(0, s - 1, s) if self.chained else 0)
        return found

    @cached_property
    def returned(self) -> list[int]:
        """Before the first backward of a stage."""
        if not self.chained:
            return [int(ns) for ns in self.forward]
        found = [self.ahead[-1] + self.forward[-1]]
        for s in range(self.stages - 2, -1, -1):
            found.append(found[-1] + self.back[s + 1] + self._hop(1, s + 1, s))
        return found[::-1]

    @cached_property
    def _ends(self) -> IntArray:
        """After the backward of a stage, or its first half, until its sum is done."""
        return np.array([self._late(s) + self.take[Kind.SYNC][s] for s in range(self.stages)])

    def _down(self, s: int) -> tuple[IntArray, IntArray]:
        """From the backward of stage s on, the ways through the stages before it to the sum of each: [stage] their
        length, and the slowest backward on them."""
        if not self.chained or s == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        ways = np.array([self._hop(1, q + 1, q) + self.back[q] for q in range(s)])
        slow = np.array(self.back[:s])
        length = np.cumsum(ways[::-1])[::-1] + self._ends[:s]
        return length, np.maximum.accumulate(slow[::-1])[::-1]

    def _after_back(self, s: int, own: int) -> tuple[IntArray, IntArray]:
        length, slow = self._down(s)
        return np.append(length, own), np.append(slow, 0)

    def _after_forward(self, s: int) -> tuple[IntArray, IntArray]:
        if not self.chained:
            return np.array([self.back[s] + self._ends[s]]), np.zeros(1, np.int64)
        onward = sum(self._hop(0, q - 1, q) + self.forward[q] for q in range(s + 1, self.stages))
        last = self.stages - 1
        length, slow = self._after_back(last, int(self._ends[last]))
        slow = np.maximum(slow, max([self.back[last], *self.forward[s + 1 :]]))
        return length + onward + self.back[last], slow

    @property
    def chain(self) -> int:
        return self.returned[0] + self.back[0]

    @cached_property
    def done(self) -> list[int]:
        """When everything of a stage may be done."""
        found = []
        for s, kinds in enumerate(self.kinds):
            last = (
                min(self.take[Kind.B][s], self.back[s] + self._late(s))
                if Kind.B in kinds
                else self.back[s] + self._late(s)
            )
            begun = self.ahead[s] + self.micros * (self.forward[s] + last)
            found.append(max(begun, self.returned[s] + self.micros * last) if self.micros else 0)
        return found

    def jobs(self, key: tuple[int, int, Kind], count: int) -> list[Job]:
        """The actions of one kind on one stage, in the order in which they will be done."""
        _, s, kind = key
        (head, before), (length, slow) = self._before(s, kind), self._after(s, kind)
        if not self.chained or count != self.micros:
            before, slow = 0, np.zeros_like(slow)
        left = np.arange(count)[::-1, None]
        tails = (length + left * slow).max(1).tolist()
        return [
            Job(head=head + k * before, takes=self.take[kind][s], tail=tail) for k, tail in enumerate(tails)
        ]

    def _before(self, s: int, kind: Kind) -> tuple[int, int]:
        """The head, and the slowest stage on the way."""
        if kind is Kind.F:
            return self.ahead[s], max(self.forward[:s], default=0)
        if kind is Kind.R:
            return self.ahead[s] + self.forward[s], 0
        if kind is Kind.W:
            return self.returned[s] + self.back[s], 0
        return self.returned[s], max(*self.forward, *self.back[s + 1 :], 0)

    def _after(self, s: int, kind: Kind) -> tuple[IntArray, IntArray]:
        """The tail by several ways, and the slowest stage on each."""
        own, none = self.take[Kind.SYNC][s], np.zeros(1, np.int64)
        if kind is Kind.F:
            return self._after_forward(s)
        if kind is Kind.W:
            return np.array([own]), none
        if kind is Kind.R:
            length, slow = self._after_back(s, int(self._ends[s]))
            return length + self.back[s], np.zeros_like(slow)
        return self._after_back(s, own if kind is Kind.B else int(self._ends[s]))


def jackson(jobs: Sequence[Job]) -> int:
    """The least time by which a machine can be through with these jobs and their tails."""
    waiting: list[list[int]] = []
    now = most = 0
    for job in sorted(jobs, key=lambda each: each.head):
        now, most = _work(waiting, now, job.head, most)
        heapq.heappush(waiting, [-job.tail, job.takes])
    return _work(waiting, now, None, most)[1]


def _work(waiting: list[list[int]], now: int, until: int | None, most: int) -> tuple[int, int]:
    """The job with the longest tail first, until more arrive."""
    while waiting and (until is None or now < until):
        top = waiting[0]
        part = top[1] if until is None else min(top[1], until - now)
        now += part
        if part == top[1]:
            heapq.heappop(waiting)
            most = max(most, now - top[0])
        else:
            top[1] -= part
    return max(now, until or 0), most
