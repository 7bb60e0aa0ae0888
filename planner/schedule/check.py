"""Judges a schedule without running it. An empty list means that nothing is wrong.

- Every micro-batch goes once through every stage in both directions, on the worker that holds the stage.
- The orders can be executed, and keep to the caps.
- The gradient sums of each communicator come in one order on all members.

What `lower` makes of a schedule is judged by `planner.program.violations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from planner.errors import BadPlan
from planner.schedule.actions import Action, Kind, Schedule, Spot, draw
from planner.schedule.event_graph import Route, Stuck
from planner.schedule.event_graph_builder import build_graph

Caps = Mapping[tuple[int, int], int]  # (pipe, stage) -> micro-batches in flight
_ONCE = (Kind.SYNC, Kind.STEP)
_DONE = (Kind.B, Kind.W)


@dataclass(frozen=True)
class ScheduleFault:
    """One thing that is wrong with a schedule: a sentence, and the actions to mark when it is drawn."""

    what: str
    marks: Mapping[Spot, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.what

    def picture(self, schedule: Schedule) -> str:
        """Returns the sentence, and below it the orders with the culprits marked.

        Args: `schedule` is the one that was judged.
        """
        return f"{self.what}\n{draw(schedule.orders, self.marks)}" if self.marks else self.what


def check_schedule(
    schedule: Schedule, routes: Sequence[Route], *, caps: Caps | None = None, barrier: bool = False
) -> Schedule:
    """Raises an error where a schedule cannot run.

    Args: `routes` are the hops that stages need; `caps` limits the micro-batches in flight of a (pipe,
        stage).
    Returns: the schedule itself.
    Raises: BadPlan with the picture of everything that is wrong.
    """
    found = violations(schedule, routes, caps=caps, barrier=barrier)
    if found:
        raise BadPlan("\n".join(violation.picture(schedule) for violation in found))
    return schedule


def violations(
    schedule: Schedule,
    routes: Sequence[Route],
    *,
    caps: Caps | None = None,
    sums: Sequence[Collection[int]] | None = None,
    barrier: bool = False,
) -> list[ScheduleFault]:
    """Lists what is wrong with a schedule. A rule is asked only where those before hold, so that causes are listed.

    Args: `sums` are sets of stages whose gradients one collective sums, in order of launch; each stage alone by
        default. A set has more than one stage where parameters are tied. `barrier` allows no update before every
        gradient is in. `routes` and `caps` are those of `check`.
    Returns: the faults; empty where the schedule can run.
    """
    updates = _updates_after_all if barrier else _updates
    for rules in ((_shape,), (_placement,), (_completeness, _order_on_the_worker, _sums, updates)):
        found = [violation for rule in rules for violation in rule(schedule)]
        if found:
            return found
    found = list(_collectives(schedule, sums or [(s,) for s in range(schedule.stages)]))
    found += _within_caps(schedule, caps) if caps else []
    if found:
        return found
    try:
        build_graph(schedule, routes, barrier=barrier)
    except Stuck as stuck:
        found.append(ScheduleFault("the orders deadlock: " + str(stuck.args[0]).split("\n")[0], stuck.marks))
    return found


def _shape(schedule: Schedule) -> Iterator[ScheduleFault]:
    lengths = {len(pipe) for pipe in schedule.place}
    if len(lengths) != 1 or not schedule.place[0]:
        yield ScheduleFault(f"pipes of different length: {sorted(lengths)} stages")
    for pipe, stages in enumerate(schedule.place):
        for stage, worker in enumerate(stages):
            if not 0 <= worker < schedule.workers:
                yield ScheduleFault(
                    f"stage {stage} of pipe {pipe} is placed on worker {worker}, of {schedule.workers}"
                )
    for micro, pipe in enumerate(schedule.pipe_of):
        if not 0 <= pipe < schedule.pipes:
            yield ScheduleFault(f"micro-batch {micro} is given to pipe {pipe}, of {schedule.pipes}")


def _everywhere(schedule: Schedule) -> Iterator[tuple[Spot, Action]]:
    for worker, order in enumerate(schedule.orders):
        for position, action in enumerate(order):
            yield Spot(worker, position), action


def _placement(schedule: Schedule) -> Iterator[ScheduleFault]:
    for spot, action in _everywhere(schedule):
        if not (action.pipe < schedule.pipes and action.stage < schedule.stages):
            yield ScheduleFault(f"{action} names no stage of the pipeline", {spot: "unknown pipe or stage"})
            continue
        if action.kind not in _ONCE:
            if action.micro >= schedule.micros:
                yield ScheduleFault(f"{action} names no micro-batch", {spot: f"there are {schedule.micros}"})
                continue
            if (pipe := schedule.pipe_of[action.micro]) != action.pipe:
                yield ScheduleFault(
                    f"micro-batch {action.micro} travels in pipe {pipe}", {spot: "another pipe"}
                )
        if (holder := schedule.place[action.pipe][action.stage]) != spot.worker:
            yield ScheduleFault(
                f"{action} is on worker {spot.worker}", {spot: f"worker {holder} holds the stage"}
            )


def _completeness(schedule: Schedule) -> Iterator[ScheduleFault]:
    count = Counter(action for order in schedule.orders for action in order)
    spots = {action: spot for spot, action in _everywhere(schedule)}
    for action, times in count.items():
        if times > 1:
            yield ScheduleFault(f"{action} happens {times} times", {spots[action]: "again"})
    for micro, pipe in enumerate(schedule.pipe_of):
        for stage in range(schedule.stages):
            yield from _visits(schedule, {kind: Action(kind, stage, micro, pipe) for kind in Kind}, spots)


def _visits(schedule: Schedule, of: dict[Kind, Action], spots: dict[Action, Spot]) -> Iterator[ScheduleFault]:
    forward = of[Kind.F]
    worker = schedule.place[forward.pipe][forward.stage]
    who = f"micro-batch {forward.micro} on stage {forward.stage} (worker {worker})"
    has = {kind for kind in Kind if of[kind] in spots}
    if Kind.B in has and has & {Kind.I, Kind.W}:
        yield ScheduleFault(f"{who} has both a whole backward and a half", {spots[of[Kind.B]]: "and I or W"})
        return
    backward = (Kind.I, Kind.W) if has & {Kind.I, Kind.W} else (Kind.B,)
    near = min((spots[of[kind]] for kind in has), default=Spot(worker, len(schedule.orders[worker]) - 1))
    for kind in (Kind.F, *backward):
        if kind not in has:
            yield ScheduleFault(
                f"{of[kind]} is missing: {who} never does it", {near: f"{of[kind]} is missing"}
            )


def _order_on_the_worker(schedule: Schedule) -> Iterator[ScheduleFault]:
    """Checks the order of one micro-batch on one stage: F, R, then B or I, then W."""
    rank = {Kind.F: 0, Kind.R: 1, Kind.B: 2, Kind.I: 2, Kind.W: 3}
    last: dict[tuple[int, int, int], Action] = {}
    for spot, action in _everywhere(schedule):
        if action.kind in _ONCE:
            continue
        before = last.setdefault(action[1:], action)
        if rank[action.kind] < rank[before.kind]:
            yield ScheduleFault(
                f"{action} comes after {before} on worker {spot.worker}", {spot: f"after {before}"}
            )
        last[action[1:]] = action


def _sums(schedule: Schedule) -> Iterator[ScheduleFault]:
    """Checks whether each (pipe, stage) has one SYNC and one STEP, and its SYNC after its last gradient."""
    at = _spots(schedule)
    for pipe, stages in enumerate(schedule.place):
        for stage, worker in enumerate(stages):
            own = at.get((pipe, stage), {})
            sync, step = (Action(kind, stage, 0, pipe) for kind in _ONCE)
            for kind, action in ((Kind.SYNC, sync), (Kind.STEP, step)):
                if kind not in own:
                    last = Spot(worker, len(schedule.orders[worker]) - 1)
                    yield ScheduleFault(
                        f"worker {worker} never does {action}", {last: f"{action} is missing"}
                    )
            for kind in _DONE:
                if kind in own and Kind.SYNC in own and own[kind].position > own[Kind.SYNC].position:
                    yield ScheduleFault(f"{sync} comes before the last {kind}", {own[Kind.SYNC]: "too early"})


def _spots(schedule: Schedule) -> dict[tuple[int, int], dict[Kind, Spot]]:
    """Finds the last action of each kind for every (pipe, stage)."""
    at: dict[tuple[int, int], dict[Kind, Spot]] = {}
    for spot, action in _everywhere(schedule):
        at.setdefault((action.pipe, action.stage), {})[action.kind] = spot
    return at


def _updates(schedule: Schedule) -> Iterator[ScheduleFault]:
    """Checks whether a STEP follows its SYNC, or precedes its stage's first forward and applies the step
    before.
    """
    first: dict[tuple[int, int], int] = {}
    for spot, action in _everywhere(schedule):
        if action.kind is Kind.F:
            first.setdefault((action.pipe, action.stage), spot.position)
    for (pipe, stage), own in _spots(schedule).items():
        if not own.keys() >= set(_ONCE):
            continue
        if first.get((pipe, stage), -1) < own[Kind.STEP].position < own[Kind.SYNC].position:
            sync, step = (Action(kind, stage, 0, pipe) for kind in _ONCE)
            yield ScheduleFault(f"{step} comes before {sync}", {own[Kind.STEP]: "too early"})


def _updates_after_all(schedule: Schedule) -> Iterator[ScheduleFault]:
    """Checks whether a STEP comes before the SYNC of its own step, which a barrier forbids."""
    for (pipe, stage), own in _spots(schedule).items():
        if own.keys() >= set(_ONCE) and own[Kind.STEP].position < own[Kind.SYNC].position:
            sync, step = (Action(kind, stage, 0, pipe) for kind in _ONCE)
            mark = "an update when the next step needs it is for update: rolling"
            yield ScheduleFault(f"{step} comes before {sync}", {own[Kind.STEP]: mark})


Launch = tuple[Spot, frozenset[int]]


def _collectives(schedule: Schedule, sums: Sequence[Collection[int]]) -> Iterator[ScheduleFault]:
    """Checks whether workers that take part in several sums launch them in one order."""
    launched = [_launches(schedule, worker, sums) for worker in range(schedule.workers)]
    for one, two in combinations(range(schedule.workers), 2):
        shared = {stages for _, stages in launched[one]} & {stages for _, stages in launched[two]}
        first = [stages for _, stages in launched[one] if stages in shared]
        second = [(spot, stages) for spot, stages in launched[two] if stages in shared]
        for expected, (spot, stages) in zip(first, second, strict=True):
            if stages != expected:
                orders = f"{_listed(first)} and {_listed(s for _, s in second)}"
                what = f"workers {one} and {two} sum gradients of stages in different orders: {orders}"
                yield ScheduleFault(what, {spot: f"worker {one} sums {_listed([expected])} here"})
                break


def _launches(schedule: Schedule, worker: int, sums: Sequence[Collection[int]]) -> list[Launch]:
    """Lists the sums that a worker launches. The last SYNC, on this worker, of a sum's stages launches it."""
    last: dict[int, int] = {}
    for position, action in enumerate(schedule.orders[worker]):
        if action.kind is Kind.SYNC:
            last[action.stage] = position
    found = [
        (max(last[s] for s in stages if s in last), index, frozenset(stages))
        for index, stages in enumerate(sums)
        if any(s in last for s in stages)
    ]
    return [(Spot(worker, position), stages) for position, _, stages in sorted(found, key=lambda f: f[:2])]


def _listed(sums: Iterable[frozenset[int]]) -> str:
    return ", ".join("+".join(map(str, sorted(stages))) for stages in sums)


def _within_caps(schedule: Schedule, caps: Caps) -> Iterator[ScheduleFault]:
    """Checks the caps. A micro-batch is in flight from F to B, or to W where the backward is split."""
    flight: Counter[tuple[int, int]] = Counter()
    for spot, action in _everywhere(schedule):
        node = (action.pipe, action.stage)
        flight[node] += (action.kind is Kind.F) - (action.kind in _DONE)
        cap = caps.get(node)
        if cap is not None and action.kind is Kind.F and flight[node] > cap:
            yield ScheduleFault(f"{action} is number {flight[node]} in flight", {spot: f"at most {cap}"})
