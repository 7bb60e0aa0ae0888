"""A small reference of its own for these tests: plays a schedule action by action and counts what is in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from planner.schedule import Action, Kind, Schedule

GRADS = (Kind.B, Kind.I)
Durations = Callable[[Action], int]


def unit(action: Action) -> int:
    return 1


def thirds(action: Action) -> int:
    """F = I = W = 1 and B = 2."""
    return 2 if action.kind is Kind.B else 1


def compute(schedule: Schedule) -> list[list[Action]]:
    return [[a for a in order if a.kind not in (Kind.SYNC, Kind.STEP)] for order in schedule.orders]


def needed(action: Action, last: int) -> Action | None:
    """What an action waits for, with I standing for B."""
    if action.kind is Kind.F:
        return action._replace(stage=action.stage - 1) if action.stage else None
    if action.kind is Kind.W:
        return action._replace(kind=Kind.I)
    if action.kind is Kind.R:
        return action._replace(kind=Kind.F)
    if action.stage == last:
        return action._replace(kind=Kind.F)
    return action._replace(kind=Kind.I, stage=action.stage + 1)


def ends(
    schedule: Schedule,
    durations: Durations = unit,
    hops: Mapping[tuple[int, int], int] | None = None,
    starts: list[int] | None = None,
) -> list[int]:
    """When each worker is done; raises where nothing can go on."""
    orders, last = compute(schedule), schedule.stages - 1
    free = list(starts or [0] * schedule.workers)
    at = [0] * schedule.workers
    done: dict[Action, int] = {}
    asleep: dict[Action, int] = {}  # what a worker waits for
    awake = list(range(schedule.workers))
    while awake:
        worker = awake.pop()
        while at[worker] < len(orders[worker]):
            action = orders[worker][at[worker]]
            before = needed(action, last)
            if before is not None and before not in done:
                asleep[before] = worker
                break
            ready = 0 if before is None else done[before]
            if before is not None and schedule.place[action.pipe][before.stage] != worker:
                ready += (hops or {}).get((before.stage, action.stage), 0)
            free[worker] = max(free[worker], ready) + durations(action)
            key = action._replace(kind=Kind.I) if action.kind is Kind.B else action
            done[key] = free[worker]
            at[worker] += 1
            if key in asleep:
                awake.append(asleep.pop(key))
    stuck = [worker for worker, order in enumerate(orders) if at[worker] < len(order)]
    assert not stuck, f"workers {stuck} wait for ever\n{schedule.to_text()}"
    return free


def span(
    schedule: Schedule, durations: Durations = unit, hops: Mapping[tuple[int, int], int] | None = None
) -> int:
    return max(ends(schedule, durations, hops))


def period(schedule: Schedule, durations: Durations = unit) -> float:
    """Time a step adds when the next begins on each worker as soon as it is free there."""
    starts = [0] * schedule.workers
    spans = []
    for _ in range(4 * schedule.workers):
        starts = ends(schedule, durations, starts=starts)
        spans.append(max(starts))
    half = len(spans) // 2
    return (spans[-1] - spans[half - 1]) / (len(spans) - half)


def peaks(schedule: Schedule, keep: Callable[[int], int] = lambda stage: 1) -> list[int]:
    """Most micro-batches (by weight) that each worker holds between F and B, or W."""
    found = []
    for order in compute(schedule):
        split = {a[1:] for a in order if a.kind is Kind.I}
        held = most = 0
        for action in order:
            if action.kind is Kind.F:
                held += keep(action.stage)
            elif action.kind is Kind.W or (action.kind is Kind.B and action[1:] not in split):
                held -= keep(action.stage)
            most = max(most, held)
        assert held == 0
        found.append(most)
    return found


def assert_whole(schedule: Schedule) -> None:
    """Every micro-batch once through every stage in both directions, where it belongs; sums and updates once."""
    count = Counter(action for order in schedule.orders for action in order)
    assert set(count.values()) == {1}
    for worker, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            assert schedule.place[action.pipe][action.stage] == worker
            if action.kind is Kind.STEP:
                assert order.index(action._replace(kind=Kind.SYNC)) < position
    for micro, pipe in enumerate(schedule.pipe_of):
        for stage in range(schedule.stages):
            whole = Action(Kind.B, stage, micro, pipe) in count
            halves = {Action(kind, stage, micro, pipe) in count for kind in (Kind.I, Kind.W)}
            assert Action(Kind.F, stage, micro, pipe) in count
            assert halves == {not whole}
    for pipe in range(schedule.pipes):
        for stage in range(schedule.stages):
            assert Action(Kind.SYNC, stage, 0, pipe) in count
            assert Action(Kind.STEP, stage, 0, pipe) in count
    assert sum(n for a, n in count.items() if a.kind is Kind.F) == schedule.stages * schedule.micros
