"""What workers hold while an order runs, which depends on the order alone, and whether that keeps to limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.costs import Limits, PerNode, PerStage

LEAVES = (Kind.B, Kind.W)  # what ends a micro-batch's stay on a stage
TURNS = (Kind.B, Kind.I)  # what ends its way forward


def limits_of(schedule: Schedule, keep: PerStage | None = None, held: PerStage | None = None) -> Limits:
    """Caps that let a worker hold what it holds at most in this schedule, and no more."""
    bare = Limits(keep=keep, held=held)
    return replace(bare, memory=tuple(weights(schedule, bare)))


def weights(schedule: Schedule, limits: Limits) -> list[int]:
    """The most that each worker holds: `keep` from F to B, or to I, and `held` from I to W."""
    keep = limits.keep or (1,) * schedule.stages
    return [_weight(order, keep, limits.held or keep) for order in schedule.orders]


def fits(schedule: Schedule, limits: Limits) -> bool:
    return all(
        order_fits(order, worker, limits, schedule.stages) for worker, order in enumerate(schedule.orders)
    )


def order_fits(order: Sequence[Action], worker: int, limits: Limits, stages: int) -> bool:
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
    """Most micro-batches that each (pipe, stage) has between F and an action of `ends`; 1 where it has none."""
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
