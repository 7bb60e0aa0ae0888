"""Plays frozen orders under whole-number costs: each action as early as it can be, links without queues.

This is the list scheduler's own clock: no gradient sums, no updates, and no messages but from a stage to its
neighbour. Plans are judged by `planner.simulate`.
The second half of the file says what workers hold while an order runs, which depends on the order alone, and
whether that keeps to limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import Place
from planner.schedule.listing.task import Costs, Limits, PerNode, PerStage

COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
MAKES = (Kind.F, Kind.B, Kind.I)  # something that another action waits for
Spot = tuple[int, int]  # worker, position in its order
Product = tuple[bool, int, int]  # of a forward?, stage, micro-batch


@dataclass
class Played:
    """The times of played orders. `cause` of an action is its input, where that came after the action before
    ended.
    """

    free: list[int]
    ends: dict[Product, int] = field(default_factory=dict)
    made_at: dict[Product, Spot] = field(default_factory=dict)
    cause: dict[Spot, Spot] = field(default_factory=dict)  # only where the input came last

    @property
    def span(self) -> int:
        """Returns when the last action ends."""
        return max(self.free)


def span(schedule: Schedule, costs: Costs) -> int:
    """Returns when the last action of a schedule ends, in the unit of `costs`.

    Raises: BadInput where the orders wait for each other.
    """
    return span_of(schedule.place, schedule.orders, costs)


def span_of(place: Place, orders: Sequence[Sequence[Action]], costs: Costs) -> int:
    """Returns when the last action of some orders ends, in the unit of `costs`.

    Raises: BadInput where the orders wait for each other.
    """
    played = play(place, orders, costs)
    if played is None:
        raise BadInput("the orders wait for each other", allowed="an order that can run")
    return played.span


def play(place: Place, orders: Sequence[Sequence[Action]], costs: Costs) -> Played | None:
    """Plays orders, each action as early as it can be.

    Returns: the times, or None where the orders wait for each other.
    """
    rows = {kind: costs.of(kind) for kind in Kind}
    played = Played(free=[0] * len(orders))
    at = [0] * len(orders)
    waiting: dict[Product, int] = {}
    awake = list(range(len(orders)))
    while awake:
        worker = awake.pop()
        order, position, now = orders[worker], at[worker], played.free[worker]
        while position < len(order):
            kind, stage, micro, pipe = order[position]
            needs = _needs(kind, stage, micro, len(place[0]))
            if needs is not None:
                if needs not in played.ends:
                    waiting[needs] = worker
                    break
                local = place[pipe][needs[1]] == worker
                ready = played.ends[needs] + (0 if local else costs.hops.get((needs[1], stage), 0))
                if ready > now:
                    now = ready
                    played.cause[worker, position] = played.made_at[needs]
            now += rows[kind][stage]
            if kind in MAKES:
                made = (kind is Kind.F, stage, micro)
                played.ends[made], played.made_at[made] = now, (worker, position)
                if made in waiting:
                    awake.append(waiting.pop(made))
            position += 1
        at[worker], played.free[worker] = position, now
    done = all(position == len(order) for position, order in zip(at, orders, strict=True))
    return played if done else None


def critical(played: Played, orders: Sequence[Sequence[Action]]) -> list[Spot]:
    """Traces one longest chain of actions back from the last end.

    Returns: (worker, position) of each, the last first.
    """
    worker = max(range(len(orders)), key=lambda w: played.free[w])
    position = len(orders[worker]) - 1
    path = []
    while position >= 0:
        path.append((worker, position))
        worker, position = played.cause.get((worker, position), (worker, position - 1))
    return path


def _needs(kind: Kind, stage: int, micro: int, stages: int) -> Product | None:
    if kind is Kind.F:
        return (True, stage - 1, micro) if stage else None
    if kind in (Kind.B, Kind.I):
        return (False, stage + 1, micro) if stage < stages - 1 else (True, stage, micro)
    return None  # W and R follow on their own worker


LEAVES = (Kind.B, Kind.W)  # what ends a micro-batch's stay on a stage
TURNS = (Kind.B, Kind.I)  # what ends its way forward


def limits_of(schedule: Schedule, keep: PerStage | None = None, held: PerStage | None = None) -> Limits:
    """Returns caps that let a worker hold what it holds at most in this schedule, and no more.

    Args: `keep` and `held` are weights a stage, as in Limits; 1 by default.
    """
    bare = Limits(keep=keep, held=held)
    return replace(bare, memory=tuple(weights(schedule, bare)))


def weights(schedule: Schedule, limits: Limits) -> list[int]:
    """Returns the most that each worker holds: `keep` from F to B or I, and `held` from I to W.

    Args: `limits` gives the weights; its caps do not count here.
    """
    keep = limits.keep or (1,) * schedule.stages
    return [_weight(order, keep, limits.held or keep) for order in schedule.orders]


def fits(schedule: Schedule, limits: Limits) -> bool:
    """Returns whether every worker of a schedule keeps to the limits.

    Args: `limits` may cap micro-batches in flight, those ahead, and the memory of a worker.
    """
    return all(
        order_fits(order, worker, limits, schedule.stages) for worker, order in enumerate(schedule.orders)
    )


def order_fits(order: Sequence[Action], worker: int, limits: Limits, stages: int) -> bool:
    """Returns whether one worker's order keeps to the limits.

    Args: `stages` is the number of stages of a pipe.
    """
    if limits.memory is not None:
        keep = limits.keep or (1,) * stages
        if _weight(order, keep, limits.held or keep) > limits.memory[worker]:
            return False
    return all(
        most <= caps[pipe][stage]
        for caps, ends in ((limits.flight, LEAVES), (limits.ahead, TURNS))
        if caps is not None
        for (pipe, stage), most in _counts(order, ends).items()
    )


def most(schedule: Schedule, ends: tuple[Kind, ...]) -> PerNode:
    """Counts how many micro-batches each (pipe, stage) has at most between F and an action of `ends`.

    Returns: [pipe][stage] counts; 1 for a stage that has none.
    """
    found = [[1] * schedule.stages for _ in schedule.place]
    for order in schedule.orders:
        for (pipe, stage), count in _counts(order, ends).items():
            found[pipe][stage] = count
    return tuple(map(tuple, found))


def _weight(order: Sequence[Action], keep: PerStage, held: PerStage) -> int:
    now = peak = 0
    for kind, stage, _, _ in order:
        if kind is Kind.F:
            now += keep[stage]
        elif kind is Kind.B:
            now -= keep[stage]
        elif kind is Kind.I:
            now += held[stage] - keep[stage]
        elif kind is Kind.W:
            now -= held[stage]
        peak = max(peak, now)
    return peak


def _counts(order: Sequence[Action], ends: tuple[Kind, ...]) -> dict[tuple[int, int], int]:
    now: dict[tuple[int, int], int] = {}
    peak: dict[tuple[int, int], int] = {}
    for kind, stage, _, pipe in order:
        node = (pipe, stage)
        if kind is Kind.F:
            now[node] = now.get(node, 0) + 1
            peak[node] = max(peak.get(node, 0), now[node])
        elif kind in ends:
            now[node] -= 1
    return peak
