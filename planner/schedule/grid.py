"""A schedule as text with some of its actions marked, for messages that have to show where something is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.schedule.action import Action

_AROUND = 8  # actions shown on either side of a mark


class Spot(NamedTuple):
    worker: int
    position: int  # index in the worker's order


def draw(orders: Sequence[Sequence[Action]], marks: Mapping[Spot, str]) -> str:
    """One line a worker; a marked action stands in brackets and its line ends in `<-- here: why`."""
    centre = min((spot.position for spot in marks), default=0)
    return "\n".join(_line(worker, order, marks, centre) for worker, order in enumerate(orders))


def _line(worker: int, order: Sequence[Action], marks: Mapping[Spot, str], centre: int) -> str:
    mine = {spot.position: why for spot, why in marks.items() if spot.worker == worker}
    middle = min(mine, default=centre)
    low, high = max(0, middle - _AROUND), min(len(order), middle + _AROUND + 1)
    words = [f"[{order[i]}]" if i in mine else str(order[i]) for i in range(low, high)]
    words += [f"[{order[i]}]" for i in mine if i >= high and i < len(order)]
    before, after = "... " if low > 0 else "", " ..." if high < len(order) else ""
    end = f"  <-- here: {'; '.join(mine.values())}" if mine else ""
    return f"worker {worker}: {before}{' '.join(words)}{after}{end}"
