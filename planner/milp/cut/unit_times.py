"""Times of gathers and sums of units, where replicas share gradients or parameters by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cluster import Sum
from planner.cost import Tables
from planner.milp.configurations.configurations import Configuration
from planner.milp.configurations.placement import TYPICAL_BYTES, PlacementCosts
from planner.milp.cut.stage_costs import COMPUTE
from planner.schedule import Kind

# gathers and sums of each unit, in an action
_MOVED: dict[str, dict[Kind, int]] = {
    "gradients": {Kind.B: 1, Kind.W: 1},
    "parameters": {Kind.F: 1, Kind.R: 1, Kind.B: 2, Kind.I: 1, Kind.W: 1},
}
_FROM_THE_LAST = (Kind.B, Kind.I, Kind.W)


def row_sum(machines: PlacementCosts, configuration: Configuration, worker: int) -> Sum:
    """Returns the all-reduce over the replicas of a worker that share gradients or parameters, the slowest of all.

    Args: `machines` have the links; `configuration` has how many they are; a gather, or a sum of parts, takes half of it.
    """
    grid, ranks = machines.grid(configuration), configuration.ranks
    over = [
        [row[w] for row in grid[first : first + ranks]]
        for w in range(configuration.workers)
        for first in range(0, len(grid), ranks)
    ]
    count = len(over) // configuration.workers
    own = machines.sums(over, "direct")[worker * count : (worker + 1) * count]
    return max(own, key=lambda each: int(each.ns(np.array([TYPICAL_BYTES]))[0]))


def with_units(
    shape: Configuration, tables: Tables, rows: Sequence[Sum], prefix: IntArray, launch: Sequence[int]
) -> list[int]:
    """Adds to the times of layers what gathers and sums of their units are not hidden by, and returns new launches.

    A gather hides behind the unit that runs before it, a sum of gradients behind the unit that runs after it. The first
    gather and the last sum of an action hide behind nothing: the largest unit's is taken.
    """
    units, added = tables.units, [0] * len(COMPUTE)
    again = (
        np.bincount(units.of_layer, _walks(tables), len(units.bytes)) > 0
    )  # weight halves that need weights
    for stage, row in enumerate(rows):
        wire = (row.ns(units.bytes) + 1) // 2
        for at, kind in enumerate(COMPUTE):
            times = _MOVED[shape.held].get(kind, 0)
            moved = (times + again if kind is Kind.W and shape.held == "parameters" else times) * wire
            if not moved.any():
                continue
            own = np.diff(prefix[at, stage]).astype(np.int64)
            works = np.bincount(units.of_layer, own, len(wire))
            near = np.append(works[1:], 0) if kind in _FROM_THE_LAST else np.append(0, works[:-1])
            exposed = np.maximum(moved - near, 0)
            more = np.ceil(exposed[units.of_layer] * units.share).astype(np.int64)
            prefix[at, stage, 1:] += more.cumsum()
            added[at] = max(added[at], int(moved.max()))
    return [before + more for before, more in zip(launch, added, strict=True)]


def _walks(tables: Tables) -> BoolArray:
    """Returns [layer]: whether its backward is halved by a walk."""
    each = np.arange(tables.layers)
    return tables.walking.stages[each, each + 1]
