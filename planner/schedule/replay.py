"""How long frozen orders take under whole-number costs, each action as early as it can be and links without queues.

The list scheduler's own clock: no sums, no updates, no messages other than from a stage to its neighbour. What a plan
is judged by is the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import BadInput
from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.assemble import Place
from planner.schedule.costs import Costs

COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)


def span(schedule: Schedule, costs: Costs) -> int:
    return span_of(schedule.place, schedule.orders, costs)


def span_of(place: Place, orders: Sequence[Sequence[Action]], costs: Costs) -> int:
    """When the last action ends; BadInput where the orders wait for each other."""
    stages = len(place[0])
    orders = [[a for a in order if a.kind in COMPUTE] for order in orders]
    rows = {kind: costs.of(kind) for kind in COMPUTE}
    ends: dict[tuple[bool, int, int], int] = {}  # forward?, stage, micro-batch
    free, at = [0] * len(orders), [0] * len(orders)
    waiting: dict[tuple[bool, int, int], int] = {}
    awake = list(range(len(orders)))
    while awake:
        worker = awake.pop()
        order, position, now = orders[worker], at[worker], free[worker]
        while position < len(order):
            kind, stage, micro, pipe = order[position]
            needs = _needs(kind, stage, micro, stages)
            if needs is not None:
                end = ends.get(needs)
                if end is None:
                    waiting[needs] = worker
                    break
                if place[pipe][needs[1]] != worker:
                    end += costs.hops.get((needs[1], stage), 0)
                now = max(now, end)
            now += rows[kind][stage]
            position += 1
            if kind in (Kind.F, Kind.B, Kind.I):
                made = (kind is Kind.F, stage, micro)
                ends[made] = now
                if made in waiting:
                    awake.append(waiting.pop(made))
        at[worker], free[worker] = position, now
    if any(position < len(order) for position, order in zip(at, orders, strict=True)):
        raise BadInput("the orders wait for each other", allowed="an order that can run")
    return max(free)


def _needs(kind: Kind, stage: int, micro: int, stages: int) -> tuple[bool, int, int] | None:
    if kind is Kind.F:
        return (True, stage - 1, micro) if stage else None
    if kind in (Kind.B, Kind.I):
        return (False, stage + 1, micro) if stage < stages - 1 else (True, stage, micro)
    return None  # W and R follow on their own worker
