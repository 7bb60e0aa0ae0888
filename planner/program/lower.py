"""Lowers a schedule to a program: every send and receive, in an order that cannot deadlock.

All messages of a pipeline have one total order, the simulated completion of the action that sends them. Ties are
broken by the action's place in the dependence order: whatever is caused by a message comes after it.

`channel`: receives are posted in the sender's order on each (source, target, pipe, direction). This is for transports
whose channels are independent of each other (gloo).
`global`: every worker issues all of its sends and receives in the one total order. This is for transports that execute
what a worker issues in order, whoever the peer is (NCCL). The order is free of deadlock even where a receive also
waits for the actions issued before it. Whatever such an action waits for came in a message that is later in the order
than this receive, and would have been posted after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.arrays import IntArray
from planner.plan import Hop, StageTimes
from planner.schedule import Action, Kind, Message, Schedule
from planner.simulate import LOOKAHEAD, Compiled, compile, duration_vector, node_ends

Layout = Literal["channel", "global"]


class Instruction(NamedTuple):
    """One instruction of a rank.

    `compute` runs `action`, `post` makes the receive of `message` ready, `wait` waits for it, and `send` starts it.
    """

    op: Literal["compute", "post", "wait", "send"]
    action: Action | None = None
    message: Message | None = None

    def __str__(self) -> str:
        return str(self.action) if self.message is None else f"{self.op}:{self.message}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The instructions of every rank of a pipeline, in order."""

    ranks: tuple[tuple[Instruction, ...], ...]

    @property
    def digest(self) -> str:
        """Returns a hash of all instructions, equal where two programs are."""
        text = "\n".join(" ".join(map(str, rank)) for rank in self.ranks)
        return hashlib.sha256(text.encode()).hexdigest()


def global_order(compiled: Compiled, durations: Sequence[int] | IntArray) -> tuple[Message, ...]:
    """Sorts all messages by the simulated end of the action that sends them, ties by dependence order.

    Args: `durations` is one duration vector of the compiled schedule.
    """
    ends, node_of = node_ends(compiled, durations), compiled.graph.node_of

    def key(message: Message) -> tuple[int, int, int]:
        kinds = (Kind.F,) if message.direction == "act" else (Kind.B, Kind.I)
        actions = (Action(kind, message.sender, message.micro, message.pipe) for kind in kinds)
        node = next(node_of[action] for action in actions if action in node_of)
        return int(ends[node]), node, message.receiver

    return tuple(sorted(compiled.graph.messages, key=key))


class _Call(NamedTuple):
    """A send or receive of a worker: `slot` is the number of actions before it, `latest` the most there may be."""

    message: Message
    receive: bool
    slot: int
    latest: int


def lower(
    schedule: Schedule,
    hops: Sequence[Hop],
    times: Sequence[StageTimes],
    *,
    layout: Layout = "channel",
    lookahead: int = LOOKAHEAD,
) -> Program:
    """Lowers a schedule. Every rank that calls this gets the same program, from the plan's integers alone.

    Args: `times` has nanoseconds a stage; `layout` depends on the transport; a receive is posted at most `lookahead`
        actions before it is needed.
    """
    ranking = global_order(compile(schedule, hops, update="rolling"), duration_vector(times, hops))
    position = _positions(schedule)
    calls: list[list[_Call]] = [[] for _ in range(schedule.workers)]
    for message in ranking:
        sent, needed = position[_ready(message, "out")], position[_ready(message, "in")]
        places = schedule.place[message.pipe]
        source, target = places[message.sender], places[message.receiver]
        calls[source].append(_Call(message, False, sent + 1, sent + 1))
        calls[target].append(_Call(message, True, max(0, needed - lookahead), needed))
    merge = _in_one_order if layout == "global" else _in_channel_order
    ranks = (
        _instructions(order, merge(own, schedule)) for order, own in zip(schedule.orders, calls, strict=True)
    )
    return Program(ranks=tuple(ranks))


_Ready = tuple[str, int, int, int]


def _ready(message: Message, side: Literal["in", "out"]) -> _Ready:
    stage = message.sender if side == "out" else message.receiver
    return message.direction, stage, message.micro, message.pipe


def _positions(schedule: Schedule) -> dict[_Ready, int]:
    """Returns where in its worker's order a stage makes, and needs, what travels in each direction."""
    found: dict[_Ready, int] = {}
    for order in schedule.orders:
        for position, action in enumerate(order):
            if action.kind in (Kind.F, Kind.B, Kind.I):
                direction = "act" if action.kind is Kind.F else "grad"
                found[direction, action.stage, action.micro, action.pipe] = position
    return found


def _in_one_order(calls: list[_Call], schedule: Schedule) -> list[_Call]:
    """Gives calls slots that never decrease along the global order: sends stay behind their action, receives move."""
    limit, latest = len(calls) and max(call.latest for call in calls), []
    for call in reversed(calls):
        limit = min(limit, call.latest)
        latest.append(limit)
    placed, slot = [], 0
    for call, limit in zip(calls, reversed(latest), strict=True):
        slot = max(slot, min(call.slot, limit))
        assert slot <= call.latest, "an order that contradicts the dependences"
        placed.append(call._replace(slot=slot))
    return placed


def _in_channel_order(calls: list[_Call], schedule: Schedule) -> list[_Call]:
    """Keeps receives in the sender's order on each channel; sends go out as soon as their action is done."""
    channels: dict[tuple[int, int, str], list[_Call]] = {}
    for call in calls:
        source = schedule.place[call.message.pipe][call.message.sender]
        channel = (source, call.message.pipe, call.message.direction) if call.receive else (-1, 0, "")
        channels.setdefault(channel, []).append(call)
    placed = [call for own in channels.values() for call in _in_one_order(own, schedule)]
    rank = {(call.message, call.receive): i for i, call in enumerate(calls)}
    return sorted(placed, key=lambda call: (call.slot, rank[call.message, call.receive]))


def _instructions(order: Sequence[Action], calls: Sequence[_Call]) -> tuple[Instruction, ...]:
    """Merges actions and calls; a wait stands right before the action that needs the message."""
    waits: dict[int, list[Message]] = {}
    for call in calls:
        if call.receive:
            waits.setdefault(call.latest, []).append(call.message)
    out, index = [], 0
    for slot in range(len(order) + 1):
        while index < len(calls) and calls[index].slot == slot:
            call = calls[index]
            out.append(Instruction("post" if call.receive else "send", message=call.message))
            index += 1
        if slot < len(order):
            out += [Instruction("wait", message=message) for message in waits.get(slot, ())]
            out.append(Instruction("compute", order[slot]))
    return tuple(out)
