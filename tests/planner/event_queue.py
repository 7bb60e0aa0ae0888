"""A plain event-queue simulation of a schedule, written without the graph: the reference for `planner.simulate`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from planner.plan import Hop, StageTimes
from planner.schedule import Action, Kind, Message, Schedule

Done = dict[tuple[int, Action], int]  # (step, action) -> end
SENDS = {Kind.F: "act", Kind.B: "grad", Kind.I: "grad"}


class EventQueue:
    def __init__(
        self,
        schedule: Schedule,
        hops: Sequence[Hop],
        times: Sequence[StageTimes],
        *,
        queueing: str = "channel",
        barrier: bool = False,
        steps: int = 1,
        ranking: Sequence[Message] = (),
    ) -> None:
        self.schedule, self.hops, self.times = schedule, hops, times
        self.queueing, self.barrier, self.steps = queueing, barrier, steps
        self.todo = [deque((k, a) for k in range(steps) for a in order) for order in schedule.orders]
        self.busy = [False] * schedule.workers
        self.done: Done = {}
        self.arrived: set[tuple[int, int, int, int]] = set()  # step, hop, micro, pipe
        self.channels: dict[object, deque[tuple[int, int, int, int]]] = {}
        self.sums = [deque((k, a.stage) for k in range(steps) for a in order if a.kind is Kind.SYNC)
                     for order in schedule.orders]  # fmt: skip
        self.summing: set[tuple[int, int]] = set()
        self.summed: set[tuple[int, int]] = set()
        self.messages_sent: list[tuple[int, int]] = []  # (start, end)
        self.ready_to_go: set[Message] = set()
        self.streams: list[deque[Message]] = [deque() for _ in schedule.orders]
        for message in ranking:
            for stage in (message.sender, message.receiver):
                self.streams[schedule.place[message.pipe][stage]].append(message)
        self.heap: list[tuple[int, int, str, object]] = []
        self.now = self.count = 0

    def run(self) -> int:
        self._start_what_can()
        while self.heap:
            self.now, _, what, item = heapq.heappop(self.heap)
            getattr(self, f"_{what}_ends")(item)
            self._start_what_can()
        assert not any(self.todo), "the reference deadlocks"
        return self.now

    def _after(self, ns: int, what: str, item: object) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + ns, self.count, what, item))

    def _start_what_can(self) -> None:
        for worker, todo in enumerate(self.todo):
            if todo and not self.busy[worker] and self._ready(*todo[0], worker):
                step, action = todo.popleft()
                self.busy[worker] = True
                self._after(self._cost(action), "action", (worker, step, action))

    def _cost(self, a: Action) -> int:
        t = self.times[a.stage]
        table = {
            Kind.F: t.forward_ns,
            Kind.B: t.backward_ns,
            Kind.I: t.input_grad_ns,
            Kind.W: t.weight_grad_ns,
        }
        return {**table, Kind.R: t.recompute_ns, Kind.SYNC: 0, Kind.STEP: t.step_ns}[a.kind]

    def _ready(self, step: int, a: Action, worker: int) -> bool:
        if self.barrier and step and any(k < step for todo in self.todo for k, _ in todo):
            return False
        if self.barrier and step and any(key[0] == step - 1 for key in self._unfinished()):
            return False
        if a.kind is Kind.STEP:
            of = step - self._before_its_sum(a)
            sums = of < 0 or not self._has_sum(a.stage) or (of, a.stage) in self.summed
            return sums and (not self.barrier or not self._gradients_left(step))
        direction = SENDS.get(a.kind)
        return all(
            self._has(step, index, a, worker)
            for index, hop in enumerate(self.hops)
            if hop.direction == direction and hop.receiver == a.stage
        )

    def _unfinished(self) -> set[tuple[int, Action]]:
        everything = {(k, a) for k in range(self.steps) for order in self.schedule.orders for a in order}
        return everything - set(self.done)

    def _has_sum(self, stage: int) -> bool:
        return any(a.kind is Kind.SYNC and a.stage == stage for order in self.schedule.orders for a in order)

    def _before_its_sum(self, a: Action) -> bool:
        """An update before the sum of its own step is of the step before."""
        order = next(order for order in self.schedule.orders if a in order)
        sync = a._replace(kind=Kind.SYNC)
        return sync in order and order.index(a) < order.index(sync)

    def _gradients_left(self, step: int) -> bool:
        left = any(k == step and a.kind is not Kind.STEP for k, a in self._unfinished())
        return left or any(k == step and (k, s) not in self.summed for queue in self.sums for k, s in queue)

    def _has(self, step: int, index: int, a: Action, worker: int) -> bool:
        hop = self.hops[index]
        if self.schedule.place[a.pipe][hop.sender] != worker:
            return (step, index, a.micro, a.pipe) in self.arrived
        kinds = (Kind.F,) if hop.direction == "act" else (Kind.B, Kind.I)
        return any((step, Action(kind, hop.sender, a.micro, a.pipe)) in self.done for kind in kinds)

    def _action_ends(self, item: tuple[int, int, Action]) -> None:
        worker, step, action = item
        self.busy[worker] = False
        self.done[step, action] = self.now
        for index, hop in enumerate(self.hops):
            if hop.direction == SENDS.get(action.kind) and hop.sender == action.stage:
                target = self.schedule.place[action.pipe][hop.receiver]
                if target != worker:
                    self._send((step, index, action.micro, action.pipe), worker, target)
        if action.kind is Kind.SYNC:
            self._start_sums()

    def _send(self, message: tuple[int, int, int, int], worker: int, target: int) -> None:
        _, index, micro, pipe = message
        if self.queueing == "stream":
            hop = self.hops[index]
            self.ready_to_go.add(Message(hop.direction, pipe, micro, hop.sender, hop.receiver))
            self._start_streams()
            return
        names = {
            "channel": (worker, target, pipe, self.hops[index].direction),
            "card": worker,
            "none": (*message, worker),
        }
        queue = self.channels.setdefault(names[self.queueing], deque())
        queue.append(message)
        if len(queue) == 1:
            self._after(self.hops[index].ns, "message", queue)

    def _message_ends(self, queue: deque[tuple[int, int, int, int]]) -> None:
        message = queue.popleft()
        self.arrived.add(message)
        ns = self.hops[message[1]].ns
        self.messages_sent.append((self.now - ns, self.now))
        if queue:
            self._after(self.hops[queue[0][1]].ns, "message", queue)

    def _start_streams(self) -> None:
        """What is first on the stream of both of its ends, and made, starts; it stays first until it has arrived."""
        for stream in self.streams:
            if not stream or stream[0] not in self.ready_to_go:
                continue
            message = stream[0]
            ends = [self.schedule.place[message.pipe][s] for s in (message.sender, message.receiver)]
            if all(self.streams[end][0] == message for end in ends):
                self.ready_to_go.remove(message)
                self._after(self._hop(message)[1].ns, "rendezvous", message)

    def _hop(self, m: Message) -> tuple[int, Hop]:
        key = (m.direction, m.sender, m.receiver)
        return next((i, h) for i, h in enumerate(self.hops) if (h.direction, h.sender, h.receiver) == key)

    def _rendezvous_ends(self, message: Message) -> None:
        index, _ = self._hop(message)
        self.arrived.add((0, index, message.micro, message.pipe))
        for stage in (message.sender, message.receiver):
            self.streams[self.schedule.place[message.pipe][stage]].popleft()
        self._start_streams()

    def _start_sums(self) -> None:
        for queue in self.sums:
            if not queue or queue[0] in self.summing:
                continue
            step, stage = queue[0]
            launches = [
                (step, a) for order in self.schedule.orders for a in order
                if a.kind is Kind.SYNC and a.stage == stage
            ]  # fmt: skip
            members = [other for other in self.sums if (step, stage) in other]
            if all(key in self.done for key in launches) and all(m[0] == (step, stage) for m in members):
                self.summing.add((step, stage))
                self._after(self.times[stage].sync_ns, "sum", (step, stage))

    def _sum_ends(self, item: tuple[int, int]) -> None:
        self.summed.add(item)
        for queue in self.sums:
            while queue and queue[0] == item:
                queue.popleft()
        self._start_sums()
