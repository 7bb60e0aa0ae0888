"""States of the search for the best order: what can start, what it leads to, and how long it takes at least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from planner.schedule.listing.engine import B, F, ListingPass, W
from planner.schedule.listing.task import ListingJob

Start = tuple[int, int]  # node, kind: an action


class State(NamedTuple):
    """Times count from now. A node is a (pipe, stage), numbered pipe * stages + stage."""

    started: tuple[tuple[int, int, int], ...]  # a node: F, B or I, W
    busy: tuple[int, ...]  # a worker
    coming: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # a node: when its next F and B can start


class Model:
    def __init__(self, job: ListingJob) -> None:
        plain = ListingPass(job, whole_way=False)  # for the way it numbers and prices nodes
        self.split, self.stages, self.worker = job.split, plain.stages, plain.worker
        self.nodes_of, self.total, self.time, self.hop = plain.nodes_of, plain.total, plain.time, plain.hop
        self.flight, self.ahead, self.load, self.eased = plain.flight, plain.ahead, plain.load, plain.eased
        self.room = job.limits.memory
        self.nodes = range(len(self.worker))
        self.last = W if self.split else B
        times = {t for n in self.nodes for t in self.time[n][: self.last + 1]}
        away = {hop for pair in self.hop for hop in pair}
        self.slots = len(times) == 1 and all(hop % max(times) == 0 for hop in away if max(times))
        self._ways()

    def _ways(self) -> None:
        """From the start of a node's F or B to the end of its micro-batch, at least."""
        nodes, stages = self.nodes, self.stages
        self.way = [[0, 0] for _ in nodes]
        late = [self.time[n][W] if self.split else 0 for n in nodes]
        for n in nodes:  # stage 0 first: the way back is known when it is needed
            onward = late[n] if n % stages == 0 else self.hop[n][1] + self.way[n - 1][B]
            self.way[n][B] = self.time[n][B] + max(onward, late[n])
        for n in reversed(nodes):
            onward = self.way[n][B] if n % stages == stages - 1 else self.hop[n][0] + self.way[n + 1][F]
            self.way[n][F] = self.time[n][F] + onward

    def first(self) -> State:
        none: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        return State(((0, 0, 0),) * len(self.worker), (0,) * len(self.nodes_of), (none,) * len(self.worker))

    def over(self, state: State) -> bool:
        return all(done[self.last] == total for done, total in zip(state.started, self.total, strict=True))

    def _ready(self, state: State, n: int, kind: int) -> int:
        """Micro-batches whose F or B could start now, or whose W."""
        done, stage = state.started[n], n % self.stages
        if kind == W:
            return done[B] - done[W] if self.split else 0
        if kind == F:
            there = state.started[n - 1][F] - len(state.coming[n][F]) if stage else self.total[n]
        elif stage == self.stages - 1:
            there = done[F]
        else:
            there = state.started[n + 1][B] - len(state.coming[n][B])
        return there - done[kind]

    def choices(self, state: State, worker: int) -> list[Start | None]:
        """Actions that the free worker may start, and None for waiting where that can be of use."""
        found: list[Start | None] = []
        for n in self.nodes_of[worker]:
            for kind in (B, F, W):
                if self._ready(state, n, kind) > 0 and (kind != F or self._fits(state, n)):
                    found.append((n, kind))
        if self.slots and any(start is not None and start[1] != F for start in found):
            return found  # in equal slots an action that frees memory can always take the idle one
        return [*found, None]

    def _fits(self, state: State, n: int) -> bool:
        forward, backward, weight = state.started[n]
        if (
            forward - (weight if self.split else backward) >= self.flight[n]
            or forward - backward >= self.ahead[n]
        ):
            return False
        if self.room is None:
            return True
        worker = self.worker[n]
        return self.load[n] + sum(self._held(state, k) for k in self.nodes_of[worker]) <= self.room[worker]

    def _held(self, state: State, n: int) -> int:
        forward, backward, weight = state.started[n]
        if not self.split:
            return (forward - backward) * self.load[n]
        return (forward - weight) * self.load[n] - (backward - weight) * self.eased[n]

    def begun(self, state: State, starts: tuple[Start | None, ...]) -> State:
        started, busy, coming = list(state.started), list(state.busy), list(state.coming)
        for start in starts:
            if start is None:
                continue
            n, kind = start
            counts = list(started[n])
            counts[kind] += 1
            started[n] = (counts[0], counts[1], counts[2])
            busy[self.worker[n]] = self.time[n][kind]
            stage = n % self.stages
            if kind == F and stage < self.stages - 1:
                at = self.time[n][F] + self.hop[n][0]
                coming[n + 1] = ((*coming[n + 1][F], at), coming[n + 1][B])
            elif kind == B and stage:
                at = self.time[n][B] + self.hop[n][1]
                coming[n - 1] = (coming[n - 1][F], (*coming[n - 1][B], at))
        return State(tuple(started), tuple(busy), tuple(coming))

    def next_event(self, state: State) -> int | None:
        """Time until anything changes: an action ends or a message arrives."""
        times = [t for t in state.busy if t]
        times += [t for pair in state.coming for row in pair for t in row]
        return min(times, default=None)

    def later(self, state: State, wait: int) -> State:
        busy = tuple(max(0, t - wait) for t in state.busy)
        coming = tuple(
            (tuple(t - wait for t in f if t > wait), tuple(t - wait for t in b if t > wait))
            for f, b in state.coming
        )
        return State(state.started, busy, coming)

    def least(self, state: State) -> int:
        """No continuation ends before this long from now."""
        soon = self._soonest(state)
        longest = 0
        for worker, nodes in enumerate(self.nodes_of):
            left = [
                (n, kind, self.total[n] - state.started[n][kind])
                for n in nodes
                for kind in range(self.last + 1)
            ]
            left = [item for item in left if item[2]]
            if not left:
                longest = max(longest, state.busy[worker])
                continue
            head = min(
                soon[n][min(kind, B)] if kind < W else self._soonest_w(state, soon, n) for n, kind, _ in left
            )
            work = sum(count * self.time[n][kind] for n, kind, count in left)
            tail = 0 if self.split else min(self.way[n][B] - self.time[n][B] for n in nodes)
            longest = max(longest, head + work + tail)
            for n, kind, count in left:
                if kind < W:
                    longest = max(
                        longest, soon[n][kind] + (count - 1) * self.time[n][kind] + self.way[n][kind]
                    )
        return longest

    def _soonest_w(self, state: State, soon: list[list[int]], n: int) -> int:
        if self._ready(state, n, W):
            return state.busy[self.worker[n]]
        return soon[n][B] + self.time[n][B]

    def _soonest(self, state: State) -> list[list[int]]:
        """When the next F and the next B of each node can start at the earliest."""
        soon = [[0, 0] for _ in self.nodes]
        for n in self.nodes:
            soon[n][F] = self._next(state, n, F, soon[n - 1][F] + self.time[n - 1][F] + self.hop[n - 1][0])
        for n in reversed(self.nodes):
            if n % self.stages == self.stages - 1:
                soon[n][B] = self._next(state, n, B, soon[n][F] + self.time[n][F])
            else:
                soon[n][B] = self._next(
                    state, n, B, soon[n + 1][B] + self.time[n + 1][B] + self.hop[n + 1][1]
                )
        return soon

    def _next(self, state: State, n: int, kind: int, otherwise: int) -> int:
        busy = state.busy[self.worker[n]]
        if self._ready(state, n, kind) > 0:
            return busy
        return max(busy, min(state.coming[n][kind], default=otherwise))

    def each(self, state: State) -> Iterator[tuple[Start | None, ...]]:
        """Every combination of choices of the free workers."""
        rows = [
            self.choices(state, w)
            for w, busy in enumerate(state.busy)
            if not busy and self._has_work(state, w)
        ]
        yield from _combinations(rows)

    def _has_work(self, state: State, worker: int) -> bool:
        return any(state.started[n][self.last] < self.total[n] for n in self.nodes_of[worker])


def _combinations(rows: list[list[Start | None]]) -> Iterator[tuple[Start | None, ...]]:
    if not rows:
        yield ()
        return
    for head in rows[0]:
        for rest in _combinations(rows[1:]):
            yield (head, *rest)
