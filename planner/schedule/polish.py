"""Small repairs: two neighbours on the longest chain change places where that makes the whole shorter.

The chain is looked at from its end, the first swap that helps is kept, and the new longest chain is next. It ends
where no swap helps, or after so many tries.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.schedule.action import Action, Kind
from planner.schedule.assemble import Place
from planner.schedule.costs import Costs, Limits
from planner.schedule.in_flight import order_fits
from planner.schedule.replay import Played, Spot, critical, play

Orders = list[list[Action]]


def polished(
    place: Place, orders: Sequence[Sequence[Action]], costs: Costs, limits: Limits, tries: int
) -> Orders:
    """Compute orders within `limits` that are as short as the given ones or shorter."""
    best: Orders = [list(order) for order in orders]
    played = play(place, best, costs)
    while played is not None and tries > 0:
        found, tries = _step(place, best, played, costs, limits, tries)
        if found is None:
            break
        best, played = found
    return best


def _step(
    place: Place, orders: Orders, played: Played, costs: Costs, limits: Limits, tries: int
) -> tuple[tuple[Orders, Played] | None, int]:
    for worker, position in critical(played, orders):
        swapped = _swapped(orders, (worker, position), limits, len(place[0]))
        if swapped is None:
            continue
        tries -= 1
        after = play(place, swapped, costs)
        if after is not None and after.span < played.span:
            return (swapped, after), tries
        if tries == 0:
            break
    return None, tries


def _swapped(orders: Orders, spot: Spot, limits: Limits, stages: int) -> Orders | None:
    """The action at the spot before the one that it follows, unless it needs that one, or room that is not there."""
    worker, position = spot
    order = orders[worker]
    if position == 0:
        return None
    first, second = order[position - 1], order[position]
    alike = first.kind is second.kind and (first.pipe, first.stage) == (second.pipe, second.stage)
    if alike or _follows(first, second):
        return None
    swapped = [*order[: position - 1], second, first, *order[position + 1 :]]
    takes_room = second.kind is Kind.F or first.kind is not Kind.F
    if takes_room and not order_fits(swapped, worker, limits, stages):
        return None
    return [*orders[:worker], swapped, *orders[worker + 1 :]]


def _follows(first: Action, second: Action) -> bool:
    """Neighbours of one micro-batch: its way is F of rising stages, then B or I of falling ones, W after its I."""
    return (first.micro, first.pipe) == (second.micro, second.pipe) and not (
        first.kind is Kind.W and second.stage != first.stage
    )
