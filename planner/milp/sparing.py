"""Recomputation stage by stage: a stage recomputes where its activations would not fit, and nowhere else.

Where every worker holds one stage, whether a stage must recompute depends on its own layers alone, and recomputing
never saves time: so the choice is made within each stage's interval, and proofs hold for all 2^D choices. Orders
have recomputation everywhere; where it is spared it takes no time, which leaves every other action where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.cost import BoolArray, IntArray
from planner.milp.order import Order
from planner.milp.shapes import Shape
from planner.schedule.action import Kind, Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparing:
    """What recomputing takes, and what the same order holds without it."""

    prefix_ns: IntArray  # [stage, layers + 1]
    launch_ns: int
    moments: tuple[IntArray, ...]  # a worker, as in `Order`

    def ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Of a stage that recomputes."""
        line = self.prefix_ns[stage]
        whole: IntArray = line[high] - line[low] + self.launch_ns
        return whole

    def peak_bytes(self, worker: int, stage: int, moving: IntArray) -> IntArray:
        """Of activations where nothing is recomputed; `moving` is [..., part]."""
        counts = np.unique(self.moments[worker][:, stage], axis=0)
        peak: IntArray = np.stack([moving @ row for row in counts]).max(0)
        return peak


def possible(shape: Shape) -> bool:
    """One stage a worker, in an order that recomputing does not change."""
    return shape.pipes == shape.chunks == 1 and shape.family != "overlap" and not shape.listed


def settled(schedule: Schedule, recomputing: BoolArray) -> Order:
    """The order in which only these stages recompute."""
    orders = tuple(
        tuple(action for action in order if action.kind is not Kind.R or recomputing[action.stage])
        for order in schedule.orders
    )
    return Order(replace(schedule, orders=orders))
