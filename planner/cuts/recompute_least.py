"""Recomputation layer by layer: a stage recomputes where its activations would not fit, and no more layers than it must.

Where every worker holds one stage, whether a stage must recompute depends on its own layers alone, and recomputing
never saves time: so the choice is made within each stage's interval, and proofs hold for all choices of all stages.
Where workers hold several, see `planner.cuts.recompute_choice`.
What is recomputed is the first layers of a stage, as few as fit, or all; what the others save is kept, beside what
enters the stage. Orders have recomputation everywhere; where it is spared it takes no time, which leaves every other
action where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.configurations import Configuration
from planner.cuts.frozen_order import Order
from planner.cuts.stage_bytes import Sizes
from planner.schedule import Kind, Schedule
from planner.simulate import PART_NAMES

# parts that may be less where some layers of a stage are recomputed than where all are
_LESS = [
    PART_NAMES.index(name) for name in ("held", "kept", "workspace", "reversing", "splitting", "weighing")
]
_SAVED = PART_NAMES.index("saved")


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastRecompute:
    """The part of a cut problem in which each stage recomputes as little as its worker's memory allows.

    Every worker holds one stage. `low` and `high` are the boundaries of one stage in many cuts: layers low .. high - 1.
    """

    sizes: Sizes  # bytes of stages, in the order where every stage recomputes
    hosted: IntArray  # [worker, stage]
    available_bytes: IntArray  # [worker]
    prefix_ns: IntArray  # [stage, layers + 1], of recomputing
    launch_ns: int
    plain: Order  # where nothing is recomputed
    by_layer: bool = False  # whether a stage may recompute some of its layers

    def redone_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Returns the time of what a stage recomputes.

        Returns: nanoseconds for each pair of boundaries, 0 where nothing is recomputed.
        """
        until, line = self.recomputed(stage, low, high), self.prefix_ns[stage]
        whole: IntArray = np.where(until > low, line[until] - line[low] + self.launch_ns, 0)
        return whole

    def recomputed(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Returns the layer before which the recomputed layers of a stage end.

        Returns: `low` where nothing must be recomputed; `high` where fewer layers do not do or are no choice.
        """
        low, high = np.broadcast_arrays(low, high)
        fixed, plain = self.sizes.fixed_bytes(low, high), self.sizes.moving_of(low, high, np.False_)
        until: IntArray = np.where(self.plain_shortage(stage, fixed, plain) > 0, high, low)
        if self.by_layer:
            must = until > low
            until[must] = self._fewest(stage, low[must], high[must])[0]
        return until

    def _fewest(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Returns `recomputed` of stages that do not fit where they recompute nothing, and what they lack then.

        Each pair of boundaries is worked out once: descents and annealing come back to the same stages.

        Returns: [2, pair]; what is lacked only where `recomputed` is not `high`.
        """
        found = self._found[stage]
        if (new := found[0, low, high] < 0).any():
            pairs = np.unique(np.stack([low[new], high[new]]), axis=1)
            found[:, pairs[0], pairs[1]] = self._first_that_fits(stage, *pairs)
        some: IntArray = found[:, low, high]
        return some

    @cached_property
    def _found(self) -> IntArray:
        """Returns [stage, 2, boundary, boundary]: what `_fewest` has found, -1 where nothing is known."""
        places = self.prefix_ns.shape[1]
        return np.full((len(self.prefix_ns), 2, places, places), -1, np.int64)

    def _first_that_fits(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        until, whole = high.copy(), self.sizes.moving_of(low, high, np.True_)
        fixed, lacked = self.sizes.fixed_bytes(low, high), np.zeros_like(high)
        whole[..., _LESS] = 0
        whole[..., _SAVED] -= self.sizes.tables.remembered[low, high]
        left = np.flatnonzero(self._shortage(stage, fixed, whole) <= 0)
        for done in range(1, int((high - low)[left].max(initial=0))):
            left = left[low[left] + done < high[left]]
            middle = low[left] + done
            lacks = self._shortage(
                stage, fixed[left], self.sizes.moving_in_two(low[left], middle, high[left])
            )
            fits = lacks <= 0
            until[left[fits]], lacked[left[fits]] = middle[fits], lacks[fits]
            left = left[~fits]
        return np.stack([until, lacked])

    def parted_shortage(self, stage: int, low: IntArray, high: IntArray, lacks: IntArray) -> IntArray:
        """Returns the bytes that a stage lacks where it may recompute some of its layers.

        Args: `lacks` is what it lacks where it recomputes nothing or all; some of its layers may fit where neither does.
        """
        low, high = np.broadcast_arrays(low, high)
        short = (lacks > 0) & (high > low)
        if not self.by_layer or not short.any():
            return lacks
        least = lacks.copy()
        until, lacked = self._fewest(stage, low[short], high[short])
        least[short] = np.where(until < high[short], lacked, least[short])
        return least

    def _shortage(self, stage: int, fixed: IntArray, moving: IntArray) -> IntArray:
        """Returns the bytes that a stage lacks on a worker of its own, in the order that recomputes."""
        (worker,) = np.flatnonzero(self.hosted[:, stage])
        counts = np.unique(self.sizes.order.moments[worker].stage(stage), axis=0)
        lacks: IntArray = fixed + (moving @ counts.T).max(-1) - self.available_bytes[worker]
        return lacks

    def plain_shortage(self, stage: int, fixed: IntArray, moving: IntArray) -> IntArray:
        """Returns the bytes that a stage lacks where nothing is recomputed, as far as its worker holds no other.

        Args: `fixed` and `moving` ([..., part]) are the bytes of the stage, throughout and of one micro-batch.
        """
        (worker,) = np.flatnonzero(self.hosted[:, stage])
        counts = np.unique(self.plain.moments[worker].stage(stage), axis=0)
        peak: IntArray = np.stack([moving @ row for row in counts]).max(0)
        lacks: IntArray = fixed + peak - self.available_bytes[worker]
        return lacks


def alone(shape: Configuration) -> bool:
    """Tells whether every worker has one stage, so that each stage decides for itself whether it recomputes.

    Args: `shape` is a configuration.
    """
    return shape.pipes == shape.chunks == 1


def settled(schedule: Schedule, recomputing: BoolArray) -> Order:
    """Returns the order in which only some stages recompute.

    Args: `recomputing` [stage] names them; `schedule` has recomputation everywhere.
    """
    orders = tuple(
        tuple(action for action in order if action.kind is not Kind.R or recomputing[action.stage])
        for order in schedule.orders
    )
    return Order(replace(schedule, orders=orders))
