"""The parts that all families share: gradient sums, updates and recomputation are put into compute orders
here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule

Place = tuple[tuple[int, ...], ...]
Setting = int | float | str | bool
Node = tuple[int, int]  # pipe, stage

LAST = (Kind.B, Kind.W)  # after the last of these a stage's gradient is complete


@dataclass(frozen=True, kw_only=True)
class FamilyRequest:
    """The arguments of `generate` after they were checked against the family's own limits."""

    family: str
    workers: int
    micros: int
    pairs: int = 1
    chunks: int = 1
    settings: dict[str, Setting]

    def whole(self, name: str, default: int) -> int:
        """Returns a setting that must be a whole number.

        Raises: BadInput for any other value.
        """
        value = self.settings.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"{name} is {value!r}", where=self.family, allowed="a whole number")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Returns a setting that must be true or false.

        Raises: BadInput for any other value.
        """
        value = self.settings.get(name, default)
        if not isinstance(value, bool):
            raise BadInput(f"{name} is {value!r}", where=self.family, allowed="true or false")
        return value


def dealt(workers: int, chunks: int) -> Place:
    """Deals stages round the workers (modulo allocation).

    Returns: a placement of one pipe with `workers * chunks` stages.
    """
    return (tuple(stage % workers for stage in range(workers * chunks)),)


def zigzag(workers: int, chunks: int) -> Place:
    """Places stages down the workers, back up, and down again, so that the stages at each turn share a
    worker.

    Returns: a placement of one pipe with `workers * chunks` stages.
    """
    row = range(workers)
    return (tuple(w for chunk in range(chunks) for w in (reversed(row) if chunk % 2 else row)),)


def assemble(
    request: FamilyRequest, place: Place, pipe_of: Sequence[int], orders: Sequence[list[Action]]
) -> Schedule:
    """Builds the schedule of a family from its compute orders: each SYNC as early as possible, every STEP at
    the end.

    Args: `pipe_of[micro]` is a pipe; `orders` hold F, B, I and W alone, one order a worker.
    """
    settings: dict[str, Setting] = {"pairs": request.pairs, "chunks": request.chunks, **request.settings}
    return Schedule(
        family=request.family,
        place=place,
        pipe_of=tuple(pipe_of),
        orders=with_updates(place, orders),
        settings=settings,
    )


def with_updates(
    place: Place, orders: Sequence[Sequence[Action]], sums: Sequence[int] = ()
) -> tuple[tuple[Action, ...], ...]:
    """Adds a SYNC right after the last gradient of each (pipe, stage), and every STEP at the end.

    Where several pipes hold replicas of a stage, sums are collectives. All workers then launch them in one
    order of stages: the stage that is complete first everywhere comes first.

    Args: `sums` is such an order if given; a sum then also waits for the launch of those before it.
    Returns: the actions of each worker.
    """
    held = _held(place, len(orders))
    ready = [_ready(order, nodes) for order, nodes in zip(orders, held, strict=True)]
    if sums:
        ready = [_in_turn(nodes, {stage: i for i, stage in enumerate(sums)}) for nodes in ready]
    elif len(place) > 1:
        left: dict[int, int] = {}
        for order, nodes in zip(orders, ready, strict=True):
            for (_, stage), at in nodes.items():
                left[stage] = min(left.get(stage, len(order)), len(order) - at)
        rank = {stage: i for i, stage in enumerate(sorted(left, key=lambda s: (-left[s], -s)))}
        ready = [_in_turn(nodes, rank) for nodes in ready]
    return tuple(_insert(order, nodes) for order, nodes in zip(orders, ready, strict=True))


def _held(place: Place, workers: int) -> list[list[Node]]:
    held: list[list[Node]] = [[] for _ in range(workers)]
    for pipe, stages in enumerate(place):
        for stage, worker in enumerate(stages):
            held[worker].append((pipe, stage))
    return held


def _ready(order: Sequence[Action], nodes: Sequence[Node]) -> dict[Node, int]:
    """Returns, for each node, the position in the order after which its gradient is complete; 0 without
    micro-batches.
    """
    ready = dict.fromkeys(nodes, 0)
    for i, action in enumerate(order):
        if action.kind in LAST:
            ready[action.pipe, action.stage] = i + 1
    return ready


def _in_turn(ready: dict[Node, int], rank: dict[int, int]) -> dict[Node, int]:
    turn: dict[Node, int] = {}
    latest = 0
    for node in sorted(ready, key=lambda n: (rank[n[1]], n[0])):
        latest = max(latest, ready[node])
        turn[node] = latest
    return turn


def _insert(order: Sequence[Action], ready: dict[Node, int]) -> tuple[Action, ...]:
    done: list[Action] = []
    start = 0
    nodes = sorted(ready, key=lambda n: ready[n])  # stable: ties stay in turn
    for pipe, stage in nodes:
        done += order[start : ready[pipe, stage]]
        start = ready[pipe, stage]
        done.append(Action(Kind.SYNC, stage, 0, pipe))
    done += order[start:]
    done += [Action(Kind.STEP, stage, 0, pipe) for pipe, stage in nodes]
    return tuple(done)


def with_recompute(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Inserts an R right before the backward (B, or I where the backward is split) of each of these stages.

    Returns: a new schedule.
    Raises: BadInput for a stage that does not exist.
    """
    wrong = sorted(set(stages) - set(range(schedule.stages)))
    if wrong:
        raise BadInput(f"no stage {wrong[0]} to recompute", allowed=f"0 to {schedule.stages - 1}")
    chosen = set(stages)
    return replace(schedule, orders=tuple(_recomputed(order, chosen) for order in schedule.orders))


def _recomputed(order: Sequence[Action], stages: set[int]) -> tuple[Action, ...]:
    done: list[Action] = []
    for action in order:
        if action.stage in stages and action.kind in (Kind.B, Kind.I):
            done.append(action._replace(kind=Kind.R))
        done.append(action)
    return tuple(done)
