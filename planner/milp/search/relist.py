"""Orders made anew for the best plans: each enters the search as a shape of its own, until none does.

An order is frozen within its shape, since path rows hold for a fixed order only; so the library of orders grows
between searches, never during one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import BadInput
from planner.milp.cut.frozen_order import Order
from planner.milp.cut.problem import CutProblem
from planner.milp.search.descent import NEVER, Answer, descend, judge
from planner.milp.write_plan import hops, stage_times
from planner.plan import Hop, StageTimes
from planner.schedule import Costs, Limits, Schedule, relistings
from planner.simulate import PART_NAMES

if TYPE_CHECKING:
    from planner.milp.search.state import ConfigurationState, SearchState

ROUNDS = 4
ALIKE = 0.1  # plans slower than the best by more are not listed anew
_FAMILIES = 4  # whose best plans are, besides the best one
_KEPT = 2  # orders of each list that enter
_MOST_ACTIONS = 4096  # of an order; listing a longer one takes too long
_LISTING_NS = 250_000.0  # of the meter, an action


def grow(found: SearchState) -> int:
    """Lists anew and proves, until no order enters that is better; how many orders entered."""
    pinned = found.space.pins
    if pinned.schedules and "listed" not in pinned.schedules:
        return 0
    seen: set[tuple[object, ...]] = set()
    count = 0
    for turn in range(ROUNDS):
        entered: list[ConfigurationState] = []
        for tried in _worth(found, 1 + (_FAMILIES if turn == 0 else 0)):
            key = (tried.shape, None if tried.answer is None else tried.answer.cut.tobytes())
            if key not in seen:
                seen.add(key)
                entered += _enter(found, tried)
        for tried in entered:
            found.examine(tried.shape)
        count += len(entered)
        if not entered:
            break
    return count


def _worth(found: SearchState, most: int) -> list[ConfigurationState]:
    """The best plan, and of each other family the best one that comes near it."""
    near = [
        t for t in found.tried.values() if t.answer is not None and t.answer.ns <= found.limit * (1 + ALIKE)
    ]
    near.sort(key=lambda tried: (tried.answer.ns if tried.answer else NEVER, tried.shape))
    firsts: dict[str, ConfigurationState] = (
        {} if found.best is None else {found.best.shape.family: found.best}
    )
    for tried in near:
        firsts.setdefault(tried.shape.family, tried)
    return list(firsts.values())[:most]


def _enter(found: SearchState, tried: ConfigurationState) -> Iterator[ConfigurationState]:
    """The orders that make this plan faster, each with the best cut found for it."""
    answer = tried.answer
    posed = tried.problem if answer is None else tried.problem.settled(answer.cut)
    enough = found.space.meter.spent_ns < found.effort.work_ns
    if answer is None or not enough or posed.stages == 1 or posed.order.actions > _MOST_ACTIONS:
        return
    better = []
    for schedule in _orders(posed, answer):
        again = len(Order(schedule).recomputing) == posed.stages
        shape = replace(tried.shape, sparing=False, chosen=(), recompute=again, listed=_name(schedule))
        found.space.enter(shape, schedule)
        new = found.look(shape)
        if new is not None and new.answer is None:
            ns = int(judge(new.problem, answer.cut[None, :])[0])
            if ns < answer.ns:
                better.append((ns, shape, new))
    for ns, _, new in sorted(better, key=lambda entry: entry[:2])[:_KEPT]:
        found.take(new, Answer(cut=answer.cut, ns=ns))
        spans = found.space.windows(new.problem)
        if spans is not None:
            found.take(new, descend(new.problem, *spans, answer.cut))
        yield new


def _orders(posed: CutProblem, answer: Answer) -> Iterator[Schedule]:
    """As many micro-batches in flight as in the order itself, or as many as memory allows."""
    costs = costs_of(stage_times(posed, answer.cut), hops(posed, answer.cut))
    known = {posed.schedule.orders}
    for limits in (None, *([] if posed.order.recomputing else [_room(posed, answer)])):
        posed.meter.spent_ns += _LISTING_NS * posed.order.actions
        for schedule in _listed(posed.schedule, costs, limits):
            if schedule.orders not in known:
                known.add(schedule.orders)
                yield schedule


def _listed(schedule: Schedule, costs: Costs, limits: Limits | None) -> list[Schedule]:
    try:
        return [listed for _, listed in relistings(schedule, costs, limits)]
    except BadInput:
        return []  # no order keeps to these limits


def _room(posed: CutProblem, answer: Answer) -> Limits:
    """What activations may take on each worker."""
    low, high = answer.cut[:-1], answer.cut[1:]
    part = dict(zip(PART_NAMES, posed.moving_bytes(low, high).T, strict=True))
    saved, held = part.pop("saved") + part.pop("shared"), part.pop("held")
    work = sum(size for name, size in part.items() if name not in ("kept", "crossing"))  # at most all at once
    fixed = posed.fixed_bytes(low, high) @ posed.hosted.T
    most_work = (np.minimum(posed.hosted, 1) * work).max(1)
    free = np.maximum(posed.available_bytes - fixed - most_work, 0)
    return Limits(memory=tuple(free.tolist()), keep=tuple(saved.tolist()), held=tuple(held.tolist()))


def _name(schedule: Schedule) -> str:
    return hashlib.sha256(schedule.to_text().encode()).hexdigest()[:12]


def costs_of(times: Sequence[StageTimes], hops: Sequence[Hop]) -> Costs:
    """A plan's own numbers, in nanoseconds. Skips are left out: listing knows neighbours only."""
    return Costs(
        forward=tuple(t.forward_ns for t in times),
        backward=tuple(t.backward_ns for t in times),
        input_grad=tuple(t.input_grad_ns for t in times),
        weight_grad=tuple(t.weight_grad_ns for t in times),
        recompute=tuple(t.recompute_ns for t in times),
        hops={(h.sender, h.receiver): h.ns for h in hops if abs(h.sender - h.receiver) == 1},
    )
