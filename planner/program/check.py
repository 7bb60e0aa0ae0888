"""Judges a program without running it: its messages, and whether it deadlocks.

Whatever executes in order is a stream: the computation of a rank, and one for each key that a layout gives its
messages. A message travels when it is at the head of its stream on both of its ranks. Both streams are blocked until
it has arrived (a rendezvous). What the host issues never blocks the host. NCCL behaves like that. Transports that
match by tag never show these deadlocks, so a program that ran on such a transport has proved nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Literal

from planner.program.lower import Instruction, Program
from planner.schedule import Action, Kind, Message, Schedule, ScheduleFault, Spot

Streams = Literal["channel", "direction", "pair", "global"]
_KEYS: Mapping[Streams, Callable[[int, int, Message], Hashable]] = {
    "channel": lambda source, target, message: (source, target, message.pipe, message.direction),
    "direction": lambda source, target, message: (source, target),
    "pair": lambda source, target, message: frozenset((source, target)),
    "global": lambda source, target, message: "one",
}


def violations(program: Program, schedule: Schedule, *, streams: Streams = "global") -> list[ScheduleFault]:
    """Lists what is wrong with a program. A question is asked only where those before found nothing.

    - Ranks compute what the schedule says.
    - Every message is sent, posted and awaited once each and in time, and in one order on its channel.
    - Actions and messages do not wait for each other in a circle.

    Args: `streams` is what shares a stream on a rank, as in `deadlock`.
    Returns: the faults; empty for a sound program.
    """
    view = _View(program, schedule)
    for rule in (_actions, _endpoints, _in_time, _one_order):
        found = list(rule(view))
        if found:
            return found
    return deadlock(program, schedule, streams=streams)


class _View:
    """A program with its schedule at hand, looked up once."""

    def __init__(self, program: Program, schedule: Schedule) -> None:
        self.program, self.schedule = program, schedule
        self.spot = {
            action: Spot(worker, position)
            for worker, order in enumerate(schedule.orders)
            for position, action in enumerate(order)
        }

    def ranks(self, message: Message) -> tuple[int, int]:
        """Returns the source and target worker of a message.

        Args: `message` is one of the schedule's.
        """
        return ends(self.schedule, message)

    def maker(self, message: Message) -> Spot | None:
        """Returns where the action stands that makes what a message carries, or None.

        Args: `message` is any.
        """
        return self._spot(message, message.sender)

    def user(self, message: Message) -> Spot | None:
        """Returns where the action stands that needs what a message carries, or None.

        Args: `message` is any.
        """
        return self._spot(message, message.receiver)

    def _spot(self, message: Message, stage: int) -> Spot | None:
        kinds = (Kind.F,) if message.direction == "act" else (Kind.B, Kind.I)
        actions = (Action(kind, stage, message.micro, message.pipe) for kind in kinds)
        return next((self.spot[action] for action in actions if action in self.spot), None)


def ends(schedule: Schedule, message: Message) -> tuple[int, int]:
    """Returns the source and target worker of a message.

    Args: `message` travels between two stages of `schedule`.
    """
    place = schedule.place[message.pipe]
    return place[message.sender], place[message.receiver]


def _actions(view: _View) -> Iterator[ScheduleFault]:
    if len(view.program.ranks) != view.schedule.workers:
        yield ScheduleFault(
            f"a program of {len(view.program.ranks)} ranks for {view.schedule.workers} workers"
        )
        return
    for rank, instructions in enumerate(view.program.ranks):
        own = tuple(i.action for i in instructions if i.op == "compute")
        if own != view.schedule.orders[rank]:
            yield ScheduleFault(f"rank {rank} does not compute what worker {rank} of the schedule does")


def _endpoints(view: _View) -> Iterator[ScheduleFault]:
    issued: dict[Message, list[tuple[str, int]]] = {}
    for rank, instructions in enumerate(view.program.ranks):
        for i in instructions:
            if i.message is not None:
                issued.setdefault(i.message, []).append((i.op, rank))
    for message, calls in issued.items():
        source, target = view.ranks(message)
        needed = [("post", target), ("send", source), ("wait", target)]
        if sorted(calls) == needed:
            continue
        actual, expected = Counter(calls), Counter(needed)
        for op, rank in sorted(expected | actual):
            have, want = actual[op, rank], expected[op, rank]
            if have != want:
                verb = {"send": "sends", "post": "posts a receive for", "wait": "waits for"}[op]
                spot = view.maker(message) if op == "send" else view.user(message)
                times = "never" if have == 0 else f"{have} times"
                allowed = "once" if want else "never: it is not its business"
                yield ScheduleFault(
                    f"rank {rank} {verb} message {message} {times} (allowed: {allowed})",
                    {spot: f"message {message}"} if spot else {},
                )


def _in_time(view: _View) -> Iterator[ScheduleFault]:
    """Checks whether sends follow what they send, and waits stand after their receive and before what needs it."""
    for rank, instructions in enumerate(view.program.ranks):
        position = -1
        posted: set[Message] = set()
        for i in instructions:
            if i.message is None:
                position += 1
                continue
            maker, user = view.maker(i.message), view.user(i.message)
            if i.op == "post":
                posted.add(i.message)
            elif i.op == "wait" and i.message not in posted:
                yield ScheduleFault(
                    f"rank {rank} waits for {i.message} before it posts the receive", _mark(user)
                )
            if i.op == "send" and (maker is None or maker.position > position):
                yield ScheduleFault(f"rank {rank} sends {i.message} before it is made", _mark(maker))
            if i.op == "wait" and (user is None or user.position <= position):
                yield ScheduleFault(f"rank {rank} needs {i.message} before it waits for it", _mark(user))


def _mark(spot: Spot | None, why: str = "too early") -> dict[Spot, str]:
    return {} if spot is None else {spot: why}


def _one_order(view: _View) -> Iterator[ScheduleFault]:
    """Checks whether both ends list a channel in one order, since a message is its position in its channel."""
    sent: dict[Hashable, list[Message]] = {}
    posted: dict[Hashable, list[Message]] = {}
    for instructions in view.program.ranks:
        for i in instructions:
            if i.message is not None and i.op != "wait":
                table = sent if i.op == "send" else posted
                key = _KEYS["channel"](*view.ranks(i.message), i.message)
                table.setdefault(key, []).append(i.message)
    for key, messages in sent.items():
        for one, other in zip(messages, posted[key], strict=True):
            if one != other:
                what = (
                    f"message {one} is received as {other}: the ends of their channel disagree on the order"
                )
                yield ScheduleFault(what, _mark(view.maker(one), f"sends {one}"))
                break


Node = tuple[int, int] | Message  # (rank, position of an action), or a message


def deadlock(
    program: Program, schedule: Schedule, *, streams: Streams = "global", posts_wait: bool = True
) -> list[ScheduleFault]:
    """Finds actions and messages that wait for each other in a circle.

    Args: `streams` is what shares a stream on a rank: a "channel" (source, target, pipe, direction), one "direction"
        between two ranks, a "pair" of ranks both ways, or everything ("global"). With `posts_wait` a receive also
        waits for the actions that its rank issued before it, as under torch's NCCL back end.
    Returns: one fault for all of them, or none.
    """
    waits = _waits(program, schedule, streams, posts_wait)
    stuck = _never(waits)
    if not stuck:
        return []
    marks: dict[Spot, str] = {}
    for rank, order in enumerate(schedule.orders):
        first = next((i for i in range(len(order)) if (rank, i) in stuck), None)
        if first is not None:
            missing = next(node for node in waits[rank, first] if node in stuck)
            marks[Spot(rank, first)] = f"waits for {missing}"
    what = f"the program deadlocks where messages share streams by {streams}"
    return [ScheduleFault(f"{what}: {len(stuck)} actions and messages never happen", marks)]


def _waits(
    program: Program, schedule: Schedule, streams: Streams, posts_wait: bool
) -> dict[Node, list[Node]]:
    waits: dict[Node, list[Node]] = {}
    for rank, instructions in enumerate(program.ranks):
        _issue(waits, rank, instructions, schedule, _KEYS[streams], posts_wait)
    return waits


def _issue(
    waits: dict[Node, list[Node]],
    rank: int,
    instructions: Sequence[Instruction],
    schedule: Schedule,
    key: Callable[[int, int, Message], Hashable],
    posts_wait: bool,
) -> None:
    position = -1
    needed: list[Node] = []
    last: dict[Hashable, Message] = {}
    for i in instructions:
        if i.message is None:
            before: list[Node] = [(rank, position)] if position >= 0 else []
            position += 1
            waits[rank, position] = [*needed, *before]
            needed = []
        elif i.op == "wait":
            needed.append(i.message)
        else:
            own = waits.setdefault(i.message, [])
            if position >= 0 and (i.op == "send" or posts_wait):
                own.append((rank, position))
            stream = key(*ends(schedule, i.message), i.message)
            if stream in last:
                own.append(last[stream])
            last[stream] = i.message


def _never(waits: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """Finds the nodes that are part of a circle of waiting, or behind one."""
    left = {node: len(on) for node, on in waits.items()}
    after: dict[Node, list[Node]] = {}
    for node, on in waits.items():
        for other in on:
            after.setdefault(other, []).append(node)
    ready = [node for node, count in left.items() if count == 0]
    while ready:
        node = ready.pop()
        del left[node]
        for follower in after.get(node, ()):
            left[follower] -= 1
            if left[follower] == 0:
                ready.append(follower)
    return set(left)
