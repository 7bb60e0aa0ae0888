"""Computes the order-free bound of one cut: no order of the same actions on the same workers takes less time.

Each worker is a machine on its own. Each action is a job with a head (what must come before it anywhere) and a tail
(what must come after it anywhere). The best preemptive schedule of a machine always works on the job with the longest
tail; Jackson's bound is its length.

Heads and tails are staggered. The way of a micro-batch is its forwards from stage to stage and its backwards back,
messages included. Each backward ends with the gradient sum of its stage. When the k-th micro-batch comes to a place
on the way, k of them have been through all places before it, on every machine. Take a row of consecutive places
before it, of which a machine has some. None of the k starts in the row before one micro-batch can be there. The
machine then works k times on all that it has of the row. The last of the k still has to go from the end of the row to
the place. The same holds backwards in time: k - 1 others that are no further follow the k-th last. Micro-batches are
alike, so this holds in whatever order they come.

The gradient sums of a worker are a machine too: no sum starts before all of its stage is done. Updates follow when
everything is done. Under a rolling update only loads count, and the way of one micro-batch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from planner.arrays import IntArray
from planner.cuts import KINDS, CutProblem
from planner.schedule import Kind

_ONCE = (Kind.SYNC, Kind.STEP)


@dataclass(frozen=True, kw_only=True)
class OneMachineJob:
    """An action on one machine: when it may start, how long it takes, what must follow it; all in nanoseconds."""

    head: int
    takes: int
    tail: int


def order_free_bound_ns(problem: CutProblem, cut: IntArray) -> int:
    """Returns nanoseconds that no order of the configuration's actions beats for this cut.

    Args: `problem` has the counts of actions and the costs; `cut` is one of its cuts.
    Returns: a lower bound of a step in nanoseconds.
    """
    return _Free(problem, cut).bound_ns()


class _Free:
    """The order-free bound of one cut: durations of its actions, and how often each worker does them."""

    def __init__(self, problem: CutProblem, cut: IntArray) -> None:
        self.problem, self.chained = problem, bool(problem.talks(cut[None, :])[0])
        spans = problem.durations(cut)
        self.take = {kind: spans.kinds[0, KINDS.index(kind)].tolist() for kind in KINDS}
        self.wire: IntArray = np.zeros(2 * problem.stages**2, np.int64)
        self.wire[spans.cells] = spans.hop_ns[0]
        self.wire = self.wire.reshape(2, problem.stages, problem.stages)
        self.counts = [
            Counter((action.pipe, action.stage, action.kind) for action in order)
            for order in problem.schedule.orders
        ]
        self.sizes = Counter(problem.schedule.pipe_of)

    def bound_ns(self) -> int:
        steps = [self._load(counts, (Kind.STEP,)) for counts in self.counts]
        work = tuple(kind for kind in KINDS if kind not in _ONCE)
        loads = [self._load(counts, work) for counts in self.counts]
        pipes = {pipe: _Pipe(self, pipe) for pipe in self.sizes}
        chain = max(pipe.chain for pipe in pipes.values())
        if self.problem.shape.update == "rolling":
            return max(chain, *(a + b for a, b in zip(loads, steps, strict=True)))
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
        """Returns, for every worker, when the last of its gradient sums is done."""
        ready = [max(pipe.done[s] for pipe in pipes.values()) for s in range(self.problem.stages)]
        found = []
        for counts in self.counts:
            at = 0
            for s in sorted({stage for _, stage, kind in counts if kind is Kind.SYNC}, key=ready.__getitem__):
                at = max(at, ready[s]) + self.take[Kind.SYNC][s]
            found.append(at)
        return found


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One action of every micro-batch, on the way of the micro-batch."""

    machine: int
    starts: int  # no micro-batch can be there before
    takes: int
    after: int  # from the end of the action to the end of the last sum that waits for it


class _Pipe:
    """The heads and tails of the stages of one pipe: place s is the forward of a stage, place -1 - s its backward."""

    def __init__(self, free: _Free, pipe: int) -> None:
        self.take, self.stages, self.micros = free.take, free.problem.stages, free.sizes[pipe]
        self.chained, self.on = free.chained, free.problem.schedule.place[pipe]
        own: set[tuple[int, Kind]] = {(s, k) for counts in free.counts for p, s, k in counts if p == pipe}
        self.kinds = [{kind for s, kind in own if s == stage} for stage in range(self.stages)]
        self.wire = free.wire
        self.back = [self._back(s) for s in range(self.stages)]
        self.way = self._way()

    def _back(self, s: int) -> int:
        """Returns how long a stage takes to hand the gradient on.

        It is the whole backward or its first half, the shorter where a stage has both.
        """
        return min((self.take[kind][s] for kind in (Kind.B, Kind.I) if kind in self.kinds[s]), default=0)

    def _late(self, s: int) -> int:
        return 0 if Kind.B in self.kinds[s] else self.take[Kind.W][s]

    def _hop(self, way: int, a: int, b: int) -> int:
        return 0 if self.on[a] == self.on[b] else int(self.wire[way, a, b])

    def _way(self) -> list[_Place]:
        """Returns the places of the way, in order.

        Where stages do not follow each other, each is a way of its own: starts and ends are of one stage.
        """
        forward, ends = (
            self.take[Kind.F],
            [self._late(s) + self.take[Kind.SYNC][s] for s in range(self.stages)],
        )
        stages = [*range(self.stages), *reversed(range(self.stages))]
        takes = [*forward, *reversed(self.back)]
        if not self.chained:
            starts = [0] * self.stages + forward[::-1]
            after = [b + e for b, e in zip(self.back, ends, strict=True)] + ends[::-1]
        else:
            hops = [self._hop(0, a, b) for a, b in pairwise(range(self.stages))] + [0]
            hops += [self._hop(1, a, b) for a, b in pairwise(reversed(range(self.stages)))]
            starts = np.cumsum([0, *(t + h for t, h in zip(takes, hops, strict=False))]).tolist()
            after = [ends[0]]
            for place in range(2 * self.stages - 2, -1, -1):
                onward = hops[place] + takes[place + 1] + after[-1]
                after.append(max(onward, ends[stages[place]] if place >= self.stages else 0))
            after.reverse()
        return [
            _Place(machine=self.on[s], starts=start, takes=take, after=left)
            for s, start, take, left in zip(stages, starts, takes, after, strict=True)
        ]

    @property
    def chain(self) -> int:
        return self.way[-1].starts + self.way[-1].takes if self.chained else 0

    @cached_property
    def heads(self) -> list[IntArray]:
        """Returns, for each place, when the k-th micro-batch can be there, for k from the first on."""
        ranks, rows = np.arange(1, self.micros + 1), self._rows()
        found, latest = [], np.zeros(self.micros, np.int64)
        for place, row in zip(self.way, rows, strict=True):
            for first, work in row if self.chained else ():
                since = first.starts - place.starts - place.takes
                latest = np.maximum(latest, since + work * ranks)
            found.append(place.starts + latest)
        return found

    @cached_property
    def tails(self) -> list[IntArray]:
        """Returns, for each place, what comes after the k-th last micro-batch has been there, for k from the last on."""
        ranks, rows = np.arange(1, self.micros + 1), self._rows(reverse=True)
        found, latest = [], np.zeros(self.micros, np.int64)
        for place, row in zip(reversed(self.way), rows, strict=True):
            for last, work in row if self.chained else ():
                latest = np.maximum(latest, place.starts + last.after + work * ranks)
            found.append(np.maximum(place.after, latest - place.starts - place.takes))
        return found[::-1]

    def _rows(self, reverse: bool = False) -> Iterator[list[tuple[_Place, int]]]:
        """Yields the rows of places that end at each place; a row has its first place and its machine's work."""
        seen: dict[int, list[_Place]] = {}
        for place in reversed(self.way) if reverse else self.way:
            own = seen.setdefault(place.machine, [])
            own.append(place)
            works = accumulate(each.takes for each in reversed(own))
            yield list(zip(reversed(own), works, strict=True))

    @cached_property
    def done(self) -> list[int]:
        """Returns when everything of a stage may be done, for each stage."""
        found = []
        for s, kinds in enumerate(self.kinds):
            whole = self.back[s] + self._late(s)
            last = min(self.take[Kind.B][s], whole) if Kind.B in kinds else whole
            forward, back = self.way[s], self.way[-1 - s]
            begun = forward.starts + self.micros * (forward.takes + last)
            found.append(max(begun, back.starts + self.micros * last, int(self.heads[-1 - s][-1]) + last))
        return found

    def jobs(self, key: tuple[int, int, Kind], count: int) -> list[OneMachineJob]:
        """Returns the actions of one kind on one stage, in the order in which they will be done."""
        _, s, kind = key
        heads, tails = self._around(s, kind)
        takes = self.take[kind][s]
        return [
            OneMachineJob(head=head, takes=takes, tail=tail)
            for head, tail in zip(heads[:count].tolist(), tails[:count][::-1].tolist(), strict=True)
        ]

    def _around(self, s: int, kind: Kind) -> tuple[IntArray, IntArray]:
        if kind is Kind.F:
            return self.heads[s], self.tails[s]
        if kind is Kind.R:
            return self.heads[s] + self.way[s].takes, self.tails[-1 - s] + self.back[s]
        if kind is Kind.W:
            own: IntArray = np.full(self.micros, self.take[Kind.SYNC][s])
            return self.heads[-1 - s] + self.back[s], own
        return self.heads[-1 - s], self.tails[-1 - s]


def jackson(jobs: Sequence[OneMachineJob]) -> int:
    """Returns the least time in which one machine can finish these jobs and their tails.

    Args: `jobs` may be interrupted, in any order.
    Returns: Jackson's preemptive bound, in the unit of the jobs.
    """
    waiting: list[list[int]] = []
    now = most = 0
    for job in sorted(jobs, key=lambda each: each.head):
        now, most = _work(waiting, now, job.head, most)
        heapq.heappush(waiting, [-job.tail, job.takes])
    return _work(waiting, now, None, most)[1]


def _work(waiting: list[list[int]], now: int, until: int | None, most: int) -> tuple[int, int]:
    """Works on the job with the longest tail until more jobs arrive; returns the time, and the latest end with its
    tail.
    """
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
