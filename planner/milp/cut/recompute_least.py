"""Recomputation layer by layer: a stage recomputes where its activations would not fit, and no more layers than it must.

Where every worker holds one stage, whether a stage must recompute depends on its own layers alone, and recomputing
never saves time: so the choice is made within each stage's interval, and proofs hold for all choices of all stages.
Where workers hold several, see `planner.milp.choosing`.
What is recomputed is the first layers of a stage, as few as fit, or all; what the others save is kept, beside what
enters the stage. Orders have recomputation everywhere; where it is spared it takes no time, which leaves every other
action where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.milp.configurations.configurations import Configuration
from planner.milp.cut.frozen_order import Order
from planner.schedule import Kind, Schedule

PARTED = 300  # layers of a model up to which stages may recompute some of theirs


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparing:
    """What recomputing takes, and what the same order holds without it."""

    prefix_ns: IntArray  # [stage, layers + 1]
    launch_ns: int
    moments: tuple[IntArray, ...]  # a worker, as in `Order`
    by_layer: bool = False  # whether a stage may recompute some of its layers

    def ns(self, stage: int, low: IntArray, until: IntArray) -> IntArray:
        """Of a stage that recomputes its layers before `until`."""
        line = self.prefix_ns[stage]
        whole: IntArray = np.where(until > low, line[until] - line[low] + self.launch_ns, 0)
        return whole

    def peak_bytes(self, worker: int, stage: int, moving: IntArray) -> IntArray:
        """Of activations where nothing is recomputed; `moving` is [..., part]."""
        counts = np.unique(self.moments[worker][:, stage], axis=0)
        peak: IntArray = np.stack([moving @ row for row in counts]).max(0)
        return peak


def alone(shape: Configuration) -> bool:
    """Whether every worker has one stage, so that each decides for itself."""
    return shape.pipes == shape.chunks == 1


def settled(schedule: Schedule, recomputing: BoolArray) -> Order:
    """The order in which only these stages recompute."""
    orders = tuple(
        tuple(action for action in order if action.kind is not Kind.R or recomputing[action.stage])
        for order in schedule.orders
    )
    return Order(replace(schedule, orders=orders))
