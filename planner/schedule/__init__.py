"""A schedule is a list of actions per worker that prints, parses and diffs.

In go a family's name with numbers of workers and micro-batches, or orders that somebody has written. Out come
a checked `Schedule`, its events as a `Graph`, and shorter orders for given costs.
Start reading in `actions.py`, then `families/registry.py` (every family), `check.py` (what may be wrong) and
`event_graph.py` (who waits for whom).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from planner.schedule.actions import Action, Kind, Message, Schedule, Spot, draw, parse_orders

if TYPE_CHECKING:
    from planner.schedule.build import LAST, with_recompute
    from planner.schedule.check import ScheduleFault, check_schedule, violations
    from planner.schedule.event_graph import KIND_ROW, Graph, Queueing, Route
    from planner.schedule.event_graph_builder import build_graph
    from planner.schedule.families.out_of_order import (
        ROUNDS_BY_PART,
        Overlap,
        Updates,
        first_uses,
        overlap_of,
        overlapped,
        rounds_by_part,
        updates_at_use,
    )
    from planner.schedule.families.registry import FAMILIES, generate
    from planner.schedule.listing.task import Costs, Limits
    from planner.schedule.relist import relistings

__all__ = [
    "FAMILIES",
    "KIND_ROW",
    "LAST",
    "ROUNDS_BY_PART",
    "Action",
    "Costs",
    "Graph",
    "Kind",
    "Limits",
    "Message",
    "Overlap",
    "Queueing",
    "Route",
    "Schedule",
    "ScheduleFault",
    "Spot",
    "Updates",
    "build_graph",
    "check_schedule",
    "draw",
    "first_uses",
    "generate",
    "overlap_of",
    "overlapped",
    "parse_orders",
    "relistings",
    "rounds_by_part",
    "updates_at_use",
    "violations",
    "with_recompute",
]

__getattr__ = later(
    __name__,
    {
        "build": (
            "LAST",
            "with_recompute",
        ),
        "check": (
            "ScheduleFault",
            "check_schedule",
            "violations",
        ),
        "event_graph": (
            "Graph",
            "KIND_ROW",
            "Queueing",
            "Route",
        ),
        "event_graph_builder": ("build_graph",),
        "families.out_of_order": (
            "Overlap",
            "ROUNDS_BY_PART",
            "Updates",
            "first_uses",
            "overlap_of",
            "overlapped",
            "rounds_by_part",
            "updates_at_use",
        ),
        "families.registry": (
            "FAMILIES",
            "generate",
        ),
        "listing.task": (
            "Costs",
            "Limits",
        ),
        "relist": ("relistings",),
    },
)
