"""Builds the graph of a schedule: who waits for whom, over which queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Message, Schedule, Spot
from planner.schedule.event_graph import (
    KIND_ROW,
    QUEUEINGS,
    Graph,
    Queue,
    Queueing,
    Route,
    Stuck,
    check_routes,
    check_shape,
)

Key = tuple[int, int, int]  # stage, micro-batch, pipe
_SENDS: dict[Kind, Literal["act", "grad"]] = {Kind.F: "act", Kind.B: "grad", Kind.I: "grad"}


class _Item(NamedTuple):
    """An action with its node; `sends` is the direction of the messages that it makes."""

    worker: int
    position: int
    action: Action
    node: int
    sends: Literal["act", "grad"] | None


class _Builder:
    """Collects nodes and whom they wait for, in any order; `finish` numbers them anew."""

    def __init__(self, schedule: Schedule, routes: Sequence[Route]) -> None:
        self.schedule, self.routes = schedule, routes
        self.stages, self.place = schedule.stages, schedule.place
        self.ends = [(route.direction, route.sender, route.receiver) for route in routes]
        self.zero = len(Kind) * self.stages + len(routes)
        self.cost = [self.zero]
        self.preds: list[list[int]] = [[]]
        self.source: dict[Queue, int] = {}
        self.tail: dict[Queue, int] = {}
        self.messages: list[Message] = []
        self.hops: list[int] = []  # node of each message
        self.syncs: dict[int, int] = {}
        self.forward: dict[Key, int] = {}
        self.grad: dict[Key, int] = {}
        self.again: dict[Key, int] = {}
        self.items: list[_Item] = []
        self.actions: list[list[int]] = [self._order(w, order) for w, order in enumerate(schedule.orders)]

    def _add(self, cost: int, preds: list[int]) -> int:
        self.cost.append(cost)
        self.preds.append(preds)
        return len(self.cost) - 1

    def enqueue(self, queue: Queue, node: int) -> None:
        last = self.tail.get(queue)
        if last is None:
            last = self.source[queue] = self._add(self.zero, [])
        self.preds[node].append(last)
        self.tail[queue] = node

    def _order(self, worker: int, order: Sequence[Action]) -> list[int]:
        nodes = []
        tables = {Kind.F: self.forward, Kind.B: self.grad, Kind.I: self.grad, Kind.R: self.again}
        rows = {kind: row * self.stages for kind, row in KIND_ROW.items()}
        last = self.source["worker", worker] = self._add(self.zero, []) if order else 0
        for position, action in enumerate(order):
            kind, stage, micro, pipe = action
            if not self._holds(worker, pipe, stage):
                mark = {Spot(worker, position): f"worker {worker} does not hold the stage"}
                raise Stuck(f"{action} is on worker {worker}", self.schedule, mark)
            launch = kind is Kind.SYNC  # the launch takes no time; the collective is a node of its own
            node = last = self._add(self.zero if launch else rows[kind] + stage, [last])
            if (table := tables.get(kind)) is not None:
                if (key := (stage, micro, pipe)) in table:
                    mark = {Spot(worker, position): "a second time"}
                    raise Stuck(f"{action} is in the schedule twice", self.schedule, mark)
                table[key] = node
            nodes.append(node)
            self.items.append(_Item(worker, position, action, node, _SENDS.get(kind)))
        if order:
            self.tail["worker", worker] = last
        else:
            del self.source["worker", worker]
        return nodes

    def _holds(self, worker: int, pipe: int, stage: int) -> bool:
        return pipe < len(self.place) and stage < self.stages and self.place[pipe][stage] == worker

    def _depend(self, node: int, on: int | None) -> None:
        """Adds an edge to a later action of the same worker, so that the circle is found; order gives the others."""
        if on is not None and on > node:
            self.preds[node].append(on)

    def connect(self, queueing: Queueing) -> None:
        outgoing: dict[tuple[str, int], list[int]] = {}
        for index, route in enumerate(self.routes):
            outgoing.setdefault((route.direction, route.sender), []).append(index)
        for item in self.items:
            self._needs(item.action, item.node)
            if item.sends is not None:
                for index in outgoing.get((item.sends, item.action.stage), ()):
                    self._message(index, item, queueing)

    def _needs(self, action: Action, node: int) -> None:
        kind, stage, micro, pipe = action
        key = stage, micro, pipe
        if kind is Kind.W:
            self._depend(node, self.grad.get(key))
        elif kind in (Kind.B, Kind.I, Kind.R):
            self._depend(node, self.forward.get(key))
            if kind is not Kind.R:
                self._depend(node, self.again.get(key))

    def _message(self, index: int, item: _Item, queueing: Queueing) -> None:
        _, _, micro, pipe = item.action
        direction, sender, receiver = self.ends[index]
        target = (self.forward if direction == "act" else self.grad).get((receiver, micro, pipe))
        if target is None:
            self._missing(receiver, item)
            return
        if (worker := self.place[pipe][receiver]) == item.worker:
            self._depend(target, item.node)
            return
        hop = self._add(len(Kind) * self.stages + index, [item.node])
        self.preds[target].append(hop)
        self.messages.append(Message(direction, pipe, micro, sender, receiver))
        self.hops.append(hop)
        if queueing == "channel":
            self.enqueue(("channel", item.worker, worker, pipe, direction), hop)
        elif queueing == "card":
            self.enqueue(("card", item.worker), hop)

    def _missing(self, receiver: int, item: _Item) -> None:
        kind = "F" if item.sends == "act" else "B or I"
        what = f"no {kind} of stage {receiver} for micro-batch {item.action.micro} is in the schedule"
        mark = {Spot(item.worker, item.position): f"sends to stage {receiver}"}
        raise Stuck(f"{item.action} has no receiver: {what}", self.schedule, mark)

    def stream(self, ranking: Iterable[Message]) -> None:
        """Queues all messages of a worker, sends and receives alike, in one given order."""
        node_of = dict(zip(self.messages, self.hops, strict=True))
        ranked = list(ranking)
        if len(ranked) != len(node_of) or set(ranked) != set(node_of):
            what = f"a ranking of {len(ranked)} messages"
            raise BadInput(what, allowed=f"each of the schedule's {len(node_of)} messages, once")
        for message in ranked:
            for stage in (message.sender, message.receiver):
                self.enqueue(("stream", self.place[message.pipe][stage]), node_of[message])

    def collect(self) -> None:
        """A collective starts when all of its launches and the collectives before it, on each holder, are done."""
        for item in self.items:
            stage = item.action.stage
            if item.action.kind is not Kind.SYNC:
                continue
            if stage not in self.syncs:
                self.syncs[stage] = self._add(KIND_ROW[Kind.SYNC] * self.stages + stage, [])
            collective = self.syncs[stage]
            self.preds[collective].append(item.node)
            if self.tail.get(("sync", item.worker)) != collective:
                self.enqueue(("sync", item.worker), collective)

    def steps(self, barrier: bool) -> None:
        steps = [item for item in self.items if item.action.kind is Kind.STEP]
        last = {item.worker: item.node for item in self.items if item.action.kind is not Kind.STEP}
        launched = {item.action[1:]: item.position for item in self.items if item.action.kind is Kind.SYNC}
        for item in steps:
            if (stage := item.action.stage) in self.syncs:
                late = item.position < launched.get(item.action[1:], -1)
                self.preds[item.node].append(self._sum_before(stage) if late else self.syncs[stage])
        if barrier and steps:
            everything = self._add(self.zero, [*last.values(), *self.syncs.values()])
            for item in steps:
                self.preds[item.node].append(everything)

    def _sum_before(self, stage: int) -> int:
        """Returns the node at which the stage's sum of the step before ends, in a queue of its own."""
        queue = ("sum", stage)
        if queue not in self.source:
            self.source[queue], self.tail[queue] = self._add(self.zero, []), self.syncs[stage]
        return self.source[queue]

    def pair_up(self) -> None:
        """Replaces more than two predecessors by a tree of joins, which take no time."""
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
            level = ready
        if any(waiting):
            self._stuck(waiting)
        return levels

    def _stuck(self, waiting: list[int]) -> None:
        """Raises Stuck with each worker's first action that never starts, and what that action waits for."""
        names = {node: f"message {message}" for message, node in zip(self.messages, self.hops, strict=True)}
        names |= {node: f"the sum of stage {stage} over its holders" for stage, node in self.syncs.items()}
        names |= {item.node: str(item.action) for item in self.items}
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
        old = np.fromiter(chain.from_iterable(levels), np.int64, len(self.cost))
        new = np.empty(len(old), np.int64)
        new[old] = np.arange(len(old))
        first, second = self._legs(new)
        queues = sorted(self.source, key=lambda queue: int(new[self.source[queue]]))
        return Graph(
            schedule=self.schedule,
            cost=np.array(self.cost, np.int64)[old],
            first=first,
            second=second,
            levels=np.cumsum([0, *map(len, levels)]),
            sources=len(queues),
            tails=new[[self.tail[queue] for queue in queues]],
            queues=tuple(queues),
            actions=tuple(new[np.array(nodes, np.int64)] for nodes in self.actions),
            messages=tuple(self.messages),
            message_nodes=new[np.array(self.hops, np.int64)],
            sync_nodes={stage: int(new[node]) for stage, node in self.syncs.items()},
        )

    def _legs(self, new: IntArray) -> tuple[IntArray, IntArray]:
        """Returns both predecessors of every node, in the new numbers; 0 where there is none."""
        count = np.fromiter(map(len, self.preds), np.int64, len(new))
        flat = new[np.fromiter(chain.from_iterable(self.preds), np.int64, int(count.sum()))]
        start = np.cumsum(count) - count
        legs: IntArray = np.zeros((2, len(new)), np.int64)
        for leg in (0, 1):
            has = count > leg
            legs[leg, new[has]] = flat[start[has] + leg]
        return legs[0], legs[1]


def build_graph(
    schedule: Schedule,
    routes: Sequence[Route],
    *,
    queueing: Queueing = "channel",
    barrier: bool = False,
    ranking: Iterable[Message] = (),
) -> Graph:
    """Builds the graph of a schedule.

    Args: `ranking` orders all messages where `queueing` is "stream"; `barrier`: no STEP before all gradients
        are in.
    Raises: Stuck where the orders deadlock; BadInput for routes or a ranking that do not fit.
    """
    if queueing not in QUEUEINGS:
        raise BadInput(f"queueing is {queueing!r}", allowed=", ".join(QUEUEINGS))
    check_shape(schedule)
    check_routes(schedule, routes)
    builder = _Builder(schedule, routes)
    builder.connect(queueing)
    if queueing == "stream":
        builder.stream(ranking)
    builder.collect()
    builder.steps(barrier)
    return builder.finish()
