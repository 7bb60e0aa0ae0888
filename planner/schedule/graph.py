"""The dependences of one step as a graph in topological order, every node with at most two predecessors.

Nodes are actions, messages, collectives and joins (of no duration, where more than two things are waited for).
What executes in order is a queue: each worker, each channel (or network card, or NCCL stream), each worker's
collectives. A queue starts from a source node of its own, so that the next step can start where this one ends.

Layout of a duration vector for D stages and H hops: kind-major `kind * D + stage` over Kind's order, then the hops.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.grid import Spot, draw
from planner.schedule.program import Message

IntArray = NDArray[np.int64]
Queueing = Literal["channel", "card", "stream", "none"]

KIND_ROW = {kind: row for row, kind in enumerate(Kind)}


class Route(Protocol):
    """What a hop of the plan says about who sends to whom."""

    @property
    def direction(self) -> Literal["act", "grad"]: ...
    @property
    def sender(self) -> int: ...
    @property
    def receiver(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Graph:
    schedule: Schedule
    cost: IntArray  # of each node: position in the duration vector with a 0 appended
    first: IntArray  # predecessor
    second: IntArray  # predecessor, or node 0, which ends at 0
    levels: IntArray  # nodes levels[k]..levels[k + 1] depend on nodes before levels[k] only
    sources: int  # nodes 1..sources start the queues
    tails: IntArray  # of each queue, its last node
    queues: tuple[tuple[Hashable, ...], ...]
    actions: tuple[IntArray, ...]  # node of each action, a worker
    messages: tuple[Message, ...]
    message_nodes: IntArray
    sync_nodes: dict[int, int]  # stage -> its collective

    @cached_property
    def node_of(self) -> dict[Action, int]:
        nodes = zip(self.schedule.orders, self.actions, strict=True)
        return {action: int(n) for order, row in nodes for action, n in zip(order, row, strict=True)}


class Stuck(BadInput):
    """Actions that cannot be; the message draws the orders with the culprits marked."""

    def __init__(self, what: str, schedule: Schedule, marks: Mapping[Spot, str]) -> None:
        self.marks = marks
        super().__init__(f"{what}\n{draw(schedule.orders, marks)}")


class _Builder:
    """Nodes in the order in which they come to mind; `finish` numbers them anew."""

    def __init__(self, schedule: Schedule, routes: Sequence[Route]) -> None:
        self.schedule, self.routes = schedule, routes
        self.zero = len(Kind) * schedule.stages + len(routes)
        self.cost = [self.zero]
        self.preds: list[list[int]] = [[]]
        self.source: dict[tuple[Hashable, ...], int] = {}
        self.tail: dict[tuple[Hashable, ...], int] = {}
        self.messages: dict[Message, int] = {}
        self.syncs: dict[int, int] = {}
        self.actions = [[self._action(w, a) for a in order] for w, order in enumerate(schedule.orders)]
        self.forward = self._by_micro(Kind.F)
        self.grad = self._by_micro(Kind.B, Kind.I)
        self.again = self._by_micro(Kind.R)

    def _add(self, cost: int, preds: list[int]) -> int:
        self.cost.append(cost)
        self.preds.append(preds)
        return len(self.cost) - 1

    def enqueue(self, queue: tuple[Hashable, ...], node: int) -> None:
        if queue not in self.tail:
            self.source[queue] = self.tail[queue] = self._add(self.zero, [])
        self.preds[node].append(self.tail[queue])
        self.tail[queue] = node

    def _action(self, worker: int, action: Action) -> int:
        if not 0 <= action.stage < self.schedule.stages:
            raise BadInput(
                f"{action} on worker {worker} is of no stage", allowed=f"0..{self.schedule.stages - 1}"
            )
        launch = action.kind is Kind.SYNC  # the launch takes no time; the collective is a node of its own
        row = self.zero if launch else KIND_ROW[action.kind] * self.schedule.stages + action.stage
        node = self._add(row, [])
        self.enqueue(("worker", worker), node)
        return node

    def _by_micro(self, *kinds: Kind) -> dict[tuple[int, int, int], int]:
        found: dict[tuple[int, int, int], int] = {}
        for worker, (order, nodes) in enumerate(zip(self.schedule.orders, self.actions, strict=True)):
            for position, (action, node) in enumerate(zip(order, nodes, strict=True)):
                if action.kind not in kinds:
                    continue
                if (key := action[1:]) in found:
                    mark = {Spot(worker, position): "a second time"}
                    raise Stuck(f"{action} is in the schedule twice", self.schedule, mark)
                found[key] = node
        return found

    def depend(self, node: int, on: int | None) -> None:
        """An earlier action of the same worker needs no edge; a later or unknown one does."""
        if on is not None and on > node:
            self.preds[node].append(on)

    def connect(self, queueing: Queueing) -> None:
        outgoing: dict[tuple[str, int], list[int]] = {}
        for index, route in enumerate(self.routes):
            outgoing.setdefault((route.direction, route.sender), []).append(index)
        for worker, (order, nodes) in enumerate(zip(self.schedule.orders, self.actions, strict=True)):
            for action, node in zip(order, nodes, strict=True):
                self._needs(action, node)
                direction = _SENDS.get(action.kind)
                for index in outgoing.get((direction, action.stage), ()) if direction else ():
                    self._message(index, worker, action, node, queueing)

    def _needs(self, action: Action, node: int) -> None:
        if action.kind in (Kind.B, Kind.I, Kind.R):
            self.depend(node, self.forward.get(action[1:]))
        if action.kind in (Kind.B, Kind.I):
            self.depend(node, self.again.get(action[1:]))
        if action.kind is Kind.W:
            self.depend(node, self.grad.get(action[1:]))

    def _message(self, index: int, worker: int, action: Action, node: int, queueing: Queueing) -> None:
        route = self.routes[index]
        table = self.forward if route.direction == "act" else self.grad
        target = table.get((route.receiver, action.micro, action.pipe))
        if target is None:
            self._missing(route, worker, action)
            return
        if (receiver := self.schedule.place[action.pipe][route.receiver]) == worker:
            self.depend(target, node)
            return
        hop = self._add(len(Kind) * self.schedule.stages + index, [node])
        self.preds[target].append(hop)
        self.messages[Message(route.direction, action.pipe, action.micro, route.sender, route.receiver)] = hop
        if queueing == "channel":
            self.enqueue(("channel", worker, receiver, action.pipe, route.direction), hop)
        elif queueing == "card":
            self.enqueue(("card", worker), hop)

    def _missing(self, route: Route, worker: int, action: Action) -> None:
        kind = "F" if route.direction == "act" else "B or I"
        position = self.schedule.orders[worker].index(action)
        what = f"no {kind} of stage {route.receiver} for micro-batch {action.micro} is in the schedule"
        mark = {Spot(worker, position): f"sends to stage {route.receiver}"}
        raise Stuck(f"{action} has no receiver: {what}", self.schedule, mark)

    def stream(self, ranking: Iterable[Message]) -> None:
        """One queue of messages a worker, sends and receives alike, in the one order given."""
        for message in ranking:
            for stage in (message.sender, message.receiver):
                worker = self.schedule.place[message.pipe][stage]
                self.enqueue(("stream", worker), self.messages[message])

    def collect(self) -> None:
        """A collective starts when all of its launches and the collectives before it, on each holder, are done."""
        for worker, (order, nodes) in enumerate(zip(self.schedule.orders, self.actions, strict=True)):
            for action, node in zip(order, nodes, strict=True):
                if action.kind is not Kind.SYNC:
                    continue
                if action.stage not in self.syncs:
                    row = KIND_ROW[Kind.SYNC] * self.schedule.stages + action.stage
                    self.syncs[action.stage] = self._add(row, [])
                collective = self.syncs[action.stage]
                self.preds[collective].append(node)
                if self.tail.get(("sync", worker)) != collective:
                    self.enqueue(("sync", worker), collective)

    def steps(self, barrier: bool) -> None:
        steps, last = [], []
        for order, nodes in zip(self.schedule.orders, self.actions, strict=True):
            pairs = list(zip(order, nodes, strict=True))
            steps += [(action, node) for action, node in pairs if action.kind is Kind.STEP]
            last += [node for action, node in pairs if action.kind is not Kind.STEP][-1:]
        for action, node in steps:
            if action.stage in self.syncs:
                self.preds[node].append(self.syncs[action.stage])
        if barrier and steps:
            everything = self._add(self.zero, [*last, *self.syncs.values()])
            for _, node in steps:
                self.preds[node].append(everything)

    def pair_up(self) -> None:
        """Joins of no duration, as a tree, where a node waits for more than two others."""
        for node in range(len(self.preds)):
            while len(waits := self.preds[node]) > 2:
                pairs = [waits[i : i + 2] for i in range(0, len(waits), 2)]
                self.preds[node] = [p[0] if len(p) == 1 else self._add(self.zero, p) for p in pairs]

    def _levels(self) -> list[list[int]]:
        waiting = [len(p) for p in self.preds]
        after: list[list[int]] = [[] for _ in self.preds]
        for node, preds in enumerate(self.preds):
            for p in preds:
                after[p].append(node)
        level = [node for node, count in enumerate(waiting) if count == 0]
        levels = []
        while level:
            levels.append(level)
            ready: list[int] = []
            for node in level:
                for follower in after[node]:
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        ready.append(follower)
            level = sorted(ready)
        if any(waiting):
            self._stuck(waiting)
        return levels

    def _stuck(self, waiting: list[int]) -> None:
        """Of each worker, the first action that never starts, with the first thing that it waits for."""
        names = {node: f"message {message}" for message, node in self.messages.items()}
        names |= {node: f"the sum of stage {stage} over its holders" for stage, node in self.syncs.items()}
        for order, nodes in zip(self.schedule.orders, self.actions, strict=True):
            names |= {node: str(action) for node, action in zip(nodes, order, strict=True)}
        marks: dict[Spot, str] = {}
        for worker, nodes in enumerate(self.actions):
            position = next((i for i, node in enumerate(nodes) if waiting[node]), None)
            if position is not None:
                missing = self._missing_of(nodes[position], waiting)
                while missing not in names:  # a join
                    missing = self._missing_of(missing, waiting)
                marks[Spot(worker, position)] = f"waits for {names[missing]}"
        raise Stuck("none of the marked actions can ever start", self.schedule, marks)

    def _missing_of(self, node: int, waiting: list[int]) -> int:
        return next(p for p in self.preds[node] if waiting[p])

    def finish(self) -> Graph:
        self.pair_up()
        levels = self._levels()
        old = [node for level in levels for node in level]
        new = np.empty(len(old), np.int64)
        new[old] = np.arange(len(old))
        pair = np.zeros((2, len(old)), np.int64)
        for node, preds in enumerate(self.preds):
            for leg, p in enumerate(preds):
                pair[leg, new[node]] = new[p]
        queues = sorted(self.source, key=lambda queue: int(new[self.source[queue]]))
        return Graph(
            schedule=self.schedule,
            cost=np.array(self.cost, np.int64)[old],
            first=pair[0],
            second=pair[1],
            levels=np.cumsum([0, *map(len, levels)]),
            sources=len(queues),
            tails=new[[self.tail[queue] for queue in queues]],
            queues=tuple(queues),
            actions=tuple(new[np.array(nodes, np.int64)] for nodes in self.actions),
            messages=tuple(self.messages),
            message_nodes=new[np.array(list(self.messages.values()), np.int64)],
            sync_nodes={stage: int(new[node]) for stage, node in self.syncs.items()},
        )


_SENDS: dict[Kind, Literal["act", "grad"]] = {Kind.F: "act", Kind.B: "grad", Kind.I: "grad"}


def build(
    schedule: Schedule,
    routes: Sequence[Route],
    *,
    queueing: Queueing = "channel",
    barrier: bool = False,
    ranking: Iterable[Message] = (),
) -> Graph:
    """`ranking` orders all messages where `queueing` is "stream"; `barrier`: no STEP before every gradient is in."""
    check_routes(schedule, routes)
    builder = _Builder(schedule, routes)
    builder.connect(queueing)
    if queueing == "stream":
        builder.stream(ranking)
    builder.collect()
    builder.steps(barrier)
    return builder.finish()


def check_routes(schedule: Schedule, routes: Sequence[Route]) -> None:
    seen = set()
    for route in routes:
        name = f"hop {route.direction} {route.sender} -> {route.receiver}"
        low, high = sorted((route.sender, route.receiver))
        if low < 0 or high >= schedule.stages or low == high:
            raise BadInput(f"{name} joins no two stages", allowed=f"stages 0..{schedule.stages - 1}")
        if (route.direction == "act") != (route.sender < route.receiver):
            raise BadInput(f"{name} goes the wrong way", allowed="act to later stages, grad to earlier ones")
        if (key := (route.direction, route.sender, route.receiver)) in seen:
            raise BadInput(f"{name} is listed twice")
        seen.add(key)
