"""The events of one step as a graph in topological order: who waits for whom.

Nodes are actions, messages, gradient sums and joins. Joins take no time and stand where a node waits for more
than two others, so that every node has at most two predecessors. Whatever executes in order is a queue: each
worker, each channel (or network card, or NCCL stream) and each worker's sums. A queue starts from a source
node of its own, so that the next step can start where this one ends.

Layout of a duration vector for D stages and H hops: kind-major `kind * D + stage` over Kind's order, then the
hops.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Message, Schedule, Spot, draw

Queueing = Literal["channel", "card", "stream", "none"]
QUEUEINGS: tuple[Queueing, ...] = get_args(Queueing)

Queue = tuple[Hashable, ...]
KIND_ROW = {kind: row for row, kind in enumerate(Kind)}


class Route(Protocol):
    """A hop of the plan, as far as it says who sends to whom."""

    @property
    def direction(self) -> Literal["act", "grad"]: ...
    @property
    def sender(self) -> int: ...
    @property
    def receiver(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The events of one step as arrays, numbered in topological order; node 0 ends at time 0."""

    schedule: Schedule
    cost: IntArray  # of each node: position in the duration vector with a 0 appended
    first: IntArray  # predecessor
    second: IntArray  # predecessor, or node 0, which ends at 0
    levels: IntArray  # nodes levels[k]..levels[k + 1] depend on nodes before levels[k] only
    sources: int  # nodes 1..sources start the queues
    tails: IntArray  # last node of each queue
    queues: tuple[Queue, ...]
    actions: tuple[IntArray, ...]  # node of each action, a worker
    messages: tuple[Message, ...]
    message_nodes: IntArray
    sync_nodes: dict[int, int]  # stage -> node of its gradient sum

    @cached_property
    def node_of(self) -> dict[Action, int]:
        """Returns the node of each action."""
        nodes = zip(self.schedule.orders, self.actions, strict=True)
        return {action: int(n) for order, row in nodes for action, n in zip(order, row, strict=True)}


class Stuck(BadInput):
    """Actions that cannot be; the message draws the orders with the culprits marked."""

    def __init__(self, what: str, schedule: Schedule, marks: Mapping[Spot, str]) -> None:
        self.marks = marks
        super().__init__(f"{what}\n{draw(schedule.orders, marks)}")


def check_shape(schedule: Schedule) -> None:
    """Refuses a schedule without pipes, or with pipes of different length.

    Raises: BadInput with the lengths of the pipes.
    """
    if not schedule.place or not schedule.place[0] or len({len(pipe) for pipe in schedule.place}) > 1:
        lengths = [len(pipe) for pipe in schedule.place]
        raise BadInput(
            f"pipes of {lengths} stages", where="place", allowed="one pipe or more, all of one length"
        )


def check_routes(schedule: Schedule, routes: Sequence[Route]) -> None:
    """Refuses a route that joins no two stages, goes against its direction or is listed twice.

    Raises: BadInput for the first such route.
    """
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
