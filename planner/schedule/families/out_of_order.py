"""Out-of-order backprop: the order of weight gradients, of the gradient sums that follow them, and of the
updates.

Each of these is an order of actions, so every part of this package, and the runtime, knows it already:
- a *part* of a stage is a stage of its own on the same worker. Its gradients are complete, and their sum can
  start, while the backward goes on through the parts before it;
- the first `late` parts of each worker do the weight half of their last micro-batch after everything else. The
  part that the next step needs first comes before the others (reverse first-k);
- `sums` is the order in which gradient sums are launched. Communicators work in the order of launches, so an order
  of priorities is worked out beforehand and is the same on every rank;
- with updates `at_use`, the STEP of a part stands before its first forward and applies the gradients of the step
  before. The next step then starts while later parts' gradients are still on their way.

One part, nothing late and updates `at_end` is the schedule itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import LAST, Node, Place, Setting, with_updates

Updates = Literal["at_end", "at_use"]
OPTIONS = {
    "parts": "stages that each stage is cut into, so that gradients are summed while the backward runs",
    "late": "first stages of each worker whose last weight gradient comes after all other work",
    "sums": "stages in the order in which their gradients are summed; as they are complete by default",
    "updates": "at_end, or at_use: when the next step first needs a stage (update: rolling)",
    "streams": "1; weight gradients on a second stream of one device are not built",
}
_ONCE = (Kind.SYNC, Kind.STEP)
ROUNDS_BY_PART = "a compiler fuses within a part and rounds where it does not, so that parts train otherwise"


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The choices of out-of-order backprop: parts a stage, late weight gradients, order of sums, and when to
    update.
    """

    parts: int = 1
    late: int = 0
    sums: tuple[int, ...] = ()
    updates: Updates = "at_end"

    def settings(self) -> dict[str, Setting]:
        """Returns what is not the default, as `generate` takes it."""
        given: dict[str, Setting] = {"sums": " ".join(map(str, self.sums))}
        given |= {"parts": self.parts, "late": self.late, "updates": self.updates}
        return {name: value for name, value in given.items() if value != _DEFAULTS[name]}


_DEFAULTS: dict[str, Setting] = {"sums": "", "parts": 1, "late": 0, "updates": "at_end"}


def rounds_by_part(precision: str, execution: str) -> bool:
    """Returns whether the last bits of a training depend on where a stage is cut into parts.

    Args: `precision` and `execution` are those of the plan.
    """
    return execution == "compiled" and precision != "fp32"


def overlap_of(settings: dict[str, Setting], where: str = "settings") -> Overlap:
    """Reads the choices of out-of-order backprop from a family's settings; other settings are ignored.

    Raises: BadInput that begins with `where`, for a value that is not allowed.
    """
    if settings.get("streams", 1) != 1:
        raise BadInput(
            f"streams is {settings['streams']!r}: weight gradients on a second stream are not built",
            where=where,
            allowed=OPTIONS["streams"],
        )
    updates = settings.get("updates", "at_end")
    if updates not in get_args(Updates):
        raise BadInput(f"updates is {updates!r}", where=where, allowed=", ".join(get_args(Updates)))
    return Overlap(
        parts=_whole(settings, "parts", 1, where),
        late=_whole(settings, "late", 0, where),
        sums=_stages(settings.get("sums", ""), where),
        updates="at_use" if updates == "at_use" else "at_end",
    )


def _whole(settings: dict[str, Setting], name: str, least: int, where: str) -> int:
    value = settings.get(name, least)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name} is {value!r}", where=where, allowed=f"a whole number, {least} or more")
    return value


def _stages(value: Setting, where: str) -> tuple[int, ...]:
    words = str(value).split()
    if not all(word.isdecimal() for word in words):
        raise BadInput(f"sums is {value!r}", where=where, allowed="numbers of stages, one blank apart")
    return tuple(map(int, words))


def overlapped(schedule: Schedule, overlap: Overlap) -> Schedule:
    """Reorders a schedule. Recomputation must be asked for afterwards.

    Returns: the same work in another order; the schedule itself where `overlap` is the default.
    Raises: BadInput where the schedule recomputes, or `sums` does not name every stage once.
    """
    if overlap == Overlap():
        return schedule
    place, computed = refined(schedule, overlap.parts)
    stages = len(place[0])
    if overlap.sums and sorted(overlap.sums) != list(range(stages)):
        raise BadInput(
            f"sums names {len(overlap.sums)} stages", where="sums", allowed=f"each of the {stages} once"
        )
    orders = updated(place, [_late(order, overlap.late) for order in computed], overlap)
    chunks = int(schedule.settings.get("chunks", 1)) * overlap.parts
    settings = {**schedule.settings, "chunks": chunks, **overlap.settings()}
    return replace(schedule, place=place, orders=orders, settings=settings)


def updated(
    place: Place, orders: Sequence[Sequence[Action]], overlap: Overlap
) -> tuple[tuple[Action, ...], ...]:
    """Adds gradient sums and updates to compute orders, where the overlap puts them.

    Returns: the actions of each worker.
    """
    whole = with_updates(place, orders, overlap.sums)
    return tuple(map(_at_use, whole)) if overlap.updates == "at_use" else whole


def refined(schedule: Schedule, parts: int) -> tuple[Place, list[list[Action]]]:
    """Cuts each stage into `parts` stages in a row on its worker, and each action into one for each of these.

    Returns: the placement and the compute orders; sums and updates are left out.
    Raises: BadInput where the schedule recomputes.
    """
    if any(action.kind is Kind.R for order in schedule.orders for action in order):
        raise BadInput(
            "a schedule that recomputes", where="parts", allowed="recompute after it is cut in parts"
        )
    place = tuple(tuple(worker for worker in pipe for _ in range(parts)) for pipe in schedule.place)
    orders = [
        [
            action._replace(stage=action.stage * parts + part)
            for action in order
            if action.kind not in _ONCE
            for part in (range(parts) if action.kind is Kind.F else reversed(range(parts)))
        ]
        for order in schedule.orders
    ]
    return place, orders


def first_uses(order: Sequence[Action]) -> list[Node]:
    """Returns every (pipe, stage) of a worker in the order in which the next step needs them, by first
    forward.

    Args: `order` is the worker's.
    """
    return list(dict.fromkeys((a.pipe, a.stage) for a in order if a.kind is Kind.F))


def _late(order: Sequence[Action], late: int) -> list[Action]:
    """Moves the last W of the first `late` nodes to the end of an order.

    Only the last contribution to a gradient moves, so contributions keep their order.
    """
    last: dict[Node, Action] = {}
    for action in order:
        if action.kind in LAST:
            last[action.pipe, action.stage] = action
    moved = [last[node] for node in first_uses(order)[:late]]
    kept = [
        action._replace(kind=Kind.I) if action.kind is Kind.B and action in moved else action
        for action in order
        if not (action.kind is Kind.W and action in moved)
    ]
    return kept + [action._replace(kind=Kind.W) for action in moved]


def _at_use(order: Sequence[Action]) -> tuple[Action, ...]:
    """Moves each STEP right before the first forward of its (pipe, stage); a STEP without a forward stays at
    the end.
    """
    waiting = {(a.pipe, a.stage): a for a in order if a.kind is Kind.STEP}
    used = set(first_uses(order))
    done: list[Action] = []
    for action in order:
        node = action.pipe, action.stage
        if action.kind is Kind.STEP and node in used:
            continue
        if action.kind is Kind.F and node in waiting:
            done.append(waiting.pop(node))
        done.append(action)
    return tuple(done)


def updates_at_use(schedule: Schedule) -> bool:
    """Returns whether some STEP of a schedule applies the gradients of the step before.

    Args: `schedule` has its sums and updates.
    """
    for order in schedule.orders:
        steps = {(a.pipe, a.stage) for a in order if a.kind is Kind.STEP}
        for action in order:
            if action.kind is Kind.SYNC:
                steps.discard((action.pipe, action.stage))
            elif action.kind is Kind.STEP and (action.pipe, action.stage) in steps:
                return True
    return False
