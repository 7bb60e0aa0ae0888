"""The engine of the list scheduler: one pass over time with counters, arrival times and a heap of wake-ups."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Spot, draw
from planner.schedule.listing.task import ListingJob

FOREVER = 1 << 62
F, B, W = 0, 1, 2  # B is I where the backward is split


class ListingPass:
    """One pass over time. A node is a (pipe, stage), numbered pipe * stages + stage.

    Micro-batches of a pipe go through every node in their order, so counters are all the state there is.
    """

    def __init__(self, job: ListingJob, *, whole_way: bool, below: int = FOREVER) -> None:
        """Runs the pass. It gives up as soon as it cannot end before `below`, unless it might get stuck."""
        self.job, self.whole_way = job, whole_way
        self.stages = len(job.place[0])
        self.worker = [w for pipe in job.place for w in pipe]
        workers, nodes = 1 + max(self.worker), range(len(self.worker))
        self.nodes_of: list[list[int]] = [[] for _ in range(workers)]
        for n in nodes:
            self.nodes_of[self.worker[n]].append(n)
        self.micros: list[list[int]] = [[] for _ in job.place]
        for micro, pipe in enumerate(job.pipe_of):
            self.micros[pipe].append(micro)
        self.total = [len(self.micros[n // self.stages]) for n in nodes]
        self.done = [[0, 0, 0] for _ in nodes]  # F, B or I, W
        self.arrived: list[list[list[int]]] = [[[], []] for _ in nodes]  # F, B or I: times
        self.ready = [0 for _ in nodes]  # actions that have arrived, and weight gradients owed
        self._prices()
        self._rooms(workers)
        self.turns = self._sequence()
        sure = not whole_way and self.turns is None and min(self.room) >= 0
        self.below = below if sure else FOREVER
        kinds = (F, B, W) if job.split else (F, B)
        self.left = [  # of each worker, work to come
            sum(self.total[n] * self.time[n][kind] for n in own for kind in kinds) for own in self.nodes_of
        ]
        self.late = False  # it was given up
        self.free = [0] * workers
        self.order: list[list[int]] = [[] for _ in range(workers)]  # node * 3 + kind, actions in turn
        self.owing = [False] * len(self.worker)  # weight gradients past their limit
        self.events: list[tuple[int, int]] = []
        self._go()

    def _prices(self) -> None:
        costs, stages = self.job.costs, self.stages
        back = costs.input_grad if self.job.split else costs.backward
        rows = list(zip(costs.forward, back, costs.weight_grad, strict=True))
        self.time = [rows[n % stages] for n in range(len(self.worker))]
        self.hop = [
            (self._hop(n, n + 1) if n % stages < stages - 1 else 0, self._hop(n, n - 1) if n % stages else 0)
            for n in range(len(self.worker))
        ]
        self.rank, tie = tuple(map(self.job.policy.order.index, "FBW")), self.job.policy.tie
        self.by_turn, self.by_arrival = tie == "micro", tie == "first"
        depth = [{"deep": stages - s, "shallow": s}.get(tie, 0) for s in range(stages)]
        self.keys = [tuple(r << 56 | own for r in self.rank) for own in depth * len(self.job.place)]

    def _hop(self, sender: int, receiver: int) -> int:
        if self.worker[sender] == self.worker[receiver]:
            return 0
        return self.job.costs.hops.get((sender % self.stages, receiver % self.stages), 0)

    def _rooms(self, workers: int) -> None:
        limits, stages = self.job.limits, self.stages
        nodes = range(len(self.worker))
        none = ((FOREVER,) * stages,) * len(self.job.place)
        self.flight = [cap for row in limits.flight or none for cap in row]
        self.ahead = [cap for row in limits.ahead or none for cap in row]
        self.room = list(limits.memory or (FOREVER,) * workers)
        keep = limits.keep or (1,) * stages
        held = limits.held or keep
        if not self.job.split:
            held = keep
        # what I would keep above `keep` is claimed from the start: W may have to wait, but never I
        self.load = [max(keep[n % stages], held[n % stages]) for n in nodes]
        self.eased = [self.load[n] - held[n % stages] if self.job.split else 0 for n in nodes]
        self.reserving = not self.whole_way and self.job.sequence is None
        self.boundless = all(each is None for each in (limits.flight, limits.ahead, limits.memory))
        self.used = [0] * len(self.worker)
        self.claim = [self._claim(n) for n in nodes]
        for n in nodes:
            self.room[self.worker[n]] -= self.claim[n]

    def _claim(self, n: int) -> int:
        """Returns a node's claim on its worker's room: at least one forward's need while forwards are to come."""
        coming = self.reserving and self.done[n][F] < self.total[n]
        return max(self.used[n], self.load[n]) if coming else self.used[n]

    def _sequence(self) -> list[list[int]] | None:
        if self.job.sequence is None:
            return None
        turns = [[self._turn(a) for a in order if a.kind in _TURNS] for order in self.job.sequence]
        return [turn[::-1] for turn in turns]  # the next is the last: popped when it starts

    def _turn(self, action: Action) -> int:
        return (action.pipe * self.stages + action.stage) * 3 + (F if action.kind is Kind.F else B)

    def _go(self) -> None:
        for n in range(0, len(self.worker), self.stages):
            self.arrived[n][0], self.ready[n] = [0] * self.total[n], self.total[n]
            heappush(self.events, (0, self.worker[n]))
        events, free, left, below = self.events, self.free, self.left, self.below
        while events:
            now, worker = heappop(events)
            if free[worker] > now:
                continue
            if now + left[worker] >= below and left[worker]:
                self.late = True
                return
            if self.turns is None:
                self._decide(worker, now)
            else:
                self._follow(worker, now, self.turns[worker])

    def _decide(self, worker: int, now: int) -> None:
        best, chosen, soon = FOREVER, -1, FOREVER
        ranks, split, owes = self.rank, self.job.split, self.job.policy.pending is not None
        by_turn, by_arrival, fits, ready = self.by_turn, self.by_arrival, self._fits, self.ready
        for n in self.nodes_of[worker]:
            if not ready[n]:
                continue
            done, arrived, keys = self.done[n], self.arrived[n], self.keys[n]
            for kind in (1, 0):
                turn, times = done[kind], arrived[kind]
                if turn < len(times):
                    at = times[turn]
                    if at > now:
                        if (at << 2 | ranks[kind]) < soon and (kind or fits(n)):
                            soon = at << 2 | ranks[kind]
                        continue
                    key = keys[kind] + (turn if by_turn else at if by_arrival else 0)
                    if key < best and (kind or fits(n)):
                        best, chosen = key, n * 3 + kind
            if split and done[1] > done[2]:
                key = -1 if owes and self._owes(n) else keys[2] + (done[2] if by_turn else 0)
                if key < best:
                    best, chosen = key, n * 3 + 2
        self._act(worker, now, chosen, soon)

    def _follow(self, worker: int, now: int, turns: list[int]) -> None:
        soon = FOREVER
        if turns:
            n, kind = divmod(turns[-1], 3)
            turn, arrived = self.done[n][kind], self.arrived[n][kind]
            if turn < len(arrived) and (kind == B or self._fits(n)):
                if arrived[turn] <= now:
                    self._start(worker, now, n, kind)
                    turns.pop()
                    return
                soon = arrived[turn] << 2
        owed = [n for n in self.nodes_of[worker] if self.job.split and self.done[n][B] > self.done[n][W]]
        chosen = max(owed, key=lambda n: self.done[n][B] - self.done[n][W]) * 3 + W if owed else -1
        self._act(worker, now, chosen, soon)

    def _act(self, worker: int, now: int, chosen: int, soon: int) -> None:
        if chosen < 0:
            if soon < FOREVER:
                heappush(self.events, (soon >> 2, worker))
            return
        n, kind = divmod(chosen, 3)
        urgent = (soon & 3) < self.rank[kind] and not self.owing[n]
        if urgent and ((soon >> 2) - now) * 100 <= self.job.policy.patience * self.time[n][kind]:
            heappush(self.events, (soon >> 2, worker))
        else:
            self._start(worker, now, n, kind)

    def _owes(self, n: int) -> bool:
        policy = self.job.policy
        if policy.pending is None:
            return False
        debt = self.done[n][1] - self.done[n][2]
        if debt > policy.pending:
            self.owing[n] = True
        elif debt <= max(0, policy.pending + 1 - policy.grain):
            self.owing[n] = False
        return self.owing[n]

    def _fits(self, n: int) -> bool:
        if self.boundless:
            return True
        forward, backward, weight = self.done[n]
        leaves = weight if self.job.split else backward
        if forward - leaves >= self.flight[n] or forward - backward >= self.ahead[n]:
            return False
        if not self.whole_way:
            return self.room[self.worker[n]] >= self.used[n] + self.load[n] - self.claim[n]
        if n % self.stages:
            return True  # in room that was taken on entry
        return all(self.room[w] >= need for w, need in self._way(n).items())

    def _way(self, n: int) -> dict[int, int]:
        need: dict[int, int] = {}
        for k in range(n, n + self.stages):
            need[self.worker[k]] = need.get(self.worker[k], 0) + self.load[k]
        return need

    def _start(self, worker: int, now: int, n: int, kind: int) -> None:
        took = self.time[n][kind]
        end = now + took
        self.free[worker] = end
        self.left[worker] -= took
        self.order[worker].append(n * 3 + kind)
        heappush(self.events, (end, worker))
        self.done[n][kind] += 1
        self.ready[n] += self.job.split - 1 if kind == B else -1
        if not self.boundless:
            self._occupy(n, kind, end)
        stage = n % self.stages
        if kind == 0:
            if stage < self.stages - 1:
                self._send(n + 1, 0, end + self.hop[n][0])
            else:
                self.arrived[n][1].append(end)
                self.ready[n] += 1
        elif kind == 1 and stage:
            self._send(n - 1, 1, end + self.hop[n][1])

    def _send(self, n: int, kind: int, at: int) -> None:
        self.arrived[n][kind].append(at)
        self.ready[n] += 1
        receiver = self.worker[n]
        if self.free[receiver] <= at:
            heappush(self.events, (at, receiver))

    def _occupy(self, n: int, kind: int, end: int) -> None:
        """Takes room for F and gives it back after I and W, or B. The counters have moved already."""
        leaving = kind == (W if self.job.split else B)
        if kind == F and self.whole_way:
            if n % self.stages == 0:
                for w, need in self._way(n).items():
                    self.room[w] -= need
            return
        freed = -self.load[n] if kind == F else self.load[n] - self.eased[n] if leaving else self.eased[n]
        self.used[n] -= freed
        if self.whole_way:
            self.room[self.worker[n]] += freed
            for first in range(0, len(self.worker), self.stages):
                heappush(self.events, (end, self.worker[first]))
            return
        if freed:
            claim = self._claim(n)
            self.room[self.worker[n]] += self.claim[n] - claim
            self.claim[n] = claim

    def finished(self) -> bool:
        return all(done[1] == total for done, total in zip(self.done, self.total, strict=True))

    def actions(self) -> list[list[Action]]:
        return as_actions(self.job, self.order)

    def stuck(self) -> BadInput:
        orders = self.actions()
        marks: dict[Spot, str] = {}
        for n, (done, total) in enumerate(zip(self.done, self.total, strict=True)):
            turn = done[0]
            if turn < total and turn < len(self.arrived[n][0]) and not self._fits(n):
                pipe, stage = divmod(n, self.stages)
                worker = self.worker[n]
                orders[worker] = [*orders[worker], Action(Kind.F, stage, self.micros[pipe][turn], pipe)]
                marks[Spot(worker, len(orders[worker]) - 1)] = "no room, and nothing left to free it"
        return BadInput(
            f"the caps deadlock: not even one micro-batch alone fits\n{draw(orders, marks)}",
            allowed="room on every worker for one micro-batch of every stage of a pipe that it holds",
        )


_TURNS = (Kind.F, Kind.B, Kind.I)


def as_actions(job: ListingJob, codes: Sequence[Sequence[int]]) -> list[list[Action]]:
    """Translates orders of node * 3 + kind into actions; a pipe's micro-batches go through each node in their order.

    Returns: one order a row of `codes`.
    """
    kinds = (Kind.F, Kind.I, Kind.W) if job.split else (Kind.F, Kind.B, Kind.W)
    stages = len(job.place[0])
    micros: list[list[int]] = [[] for _ in job.place]
    for micro, pipe in enumerate(job.pipe_of):
        micros[pipe].append(micro)
    turns = [0] * (3 * stages * len(job.place))
    orders = []
    for row in codes:
        order = []
        for code in row:
            node, kind = divmod(code, 3)
            pipe, stage = divmod(node, stages)
            order.append(Action(kinds[kind], stage, micros[pipe][turns[code]], pipe))
            turns[code] += 1
        orders.append(order)
    return orders
