"""Recomputation where workers hold several stages: which stages recompute is decided with the boundaries.

Whether a stage must recompute depends there on what the others of its worker hold. So a point of such a problem is a
cut followed by a flag a stage, 1 where it recomputes, and the tree divides both. Orders have recomputation everywhere:
where a stage does none it takes no time, which leaves every other action where it was.

    time      a path row counts the recomputations of a stage times its flag; without flags it holds for any
    memory    at a moment of an action that every such order has, a stage holds per micro-batch what it saves, or what
              it keeps of that where it recomputes; of messages at least those that are there where all recompute,
              since fewer actions lie within so many ahead of a use then. What neighbours on one worker hold once
              counts once. `least` has these rows: no choice holds less
    a choice  of the stages of one worker fixes what it holds to the byte: `settled` has those rows, and a point is
              judged by them alone
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cuts.frozen_order import Moments, WorkMeter, counted, peaks
from planner.cuts.problem import CutProblem
from planner.cuts.recompute_least import settled
from planner.cuts.stage_costs import COMPUTE, KINDS, Durations, GridKey
from planner.schedule import Kind, Schedule
from planner.simulate import PART_NAMES, Spans, lifetimes, live_counts, undominated

_SAVED, _KEPT, _SHARED = (PART_NAMES.index(name) for name in ("saved", "kept", "shared"))
_AGAIN = KINDS.index(Kind.R)


@dataclass(frozen=True, eq=False)
class RecomputeMoments:
    """The moments of an order in which every stage recomputes, for any choice of stages that do."""

    schedule: Schedule
    _known: dict[tuple[int, frozenset[int]], Moments] = field(default_factory=dict)

    @cached_property
    def stages_of(self) -> tuple[frozenset[int], ...]:
        """Returns the stages of each worker."""
        orders = self.schedule.orders
        return tuple(frozenset(action.stage for action in order) for order in orders)

    @cached_property
    def least(self) -> tuple[Moments, ...]:
        """Returns moments for each worker, as in `Order.moments`: no choice holds less."""
        return tuple(self._least(worker) for worker in range(self.schedule.workers))

    def _least(self, worker: int) -> Moments:
        order = self.schedule.orders[worker]
        counts = live_counts(self._spans[worker], self.schedule.stages)
        rows: IntArray = counts[[action.kind is not Kind.R for action in order]]
        for row in self.schedule.place:
            for stage in range(1, len(row)):
                if row[stage - 1] == row[stage] == worker:
                    rows[:, stage, _SHARED] = 0
        return Moments.of(undominated(rows))

    @cached_property
    def _spans(self) -> tuple[Spans, ...]:
        return lifetimes(self.schedule)

    def moments(self, again: frozenset[int], meter: WorkMeter) -> tuple[Moments, ...]:
        """Returns the moments of each worker where just the stages `again` recompute."""
        keys = [(worker, own & again) for worker, own in enumerate(self.stages_of)]
        if any(key not in self._known for key in keys):
            stages = range(self.schedule.stages)
            order = settled(self.schedule, np.isin(stages, list(again)))
            meter.compiled(order.actions)
            for key, own in zip(keys, lifetimes(order.schedule), strict=True):
                if key not in self._known:
                    rows = undominated(live_counts(own, self.schedule.stages))
                    self._known[key] = Moments.of(rows)
        return tuple(self._known[key] for key in keys)


@dataclass(frozen=True, kw_only=True)
class RecomputeProblem(CutProblem):
    choices: RecomputeMoments
    again_prefix_ns: IntArray  # [stage, layers + 1]; `prefix_ns` has no recomputation
    again_launch_ns: int
    flagged: ClassVar[bool] = True

    @staticmethod
    def of(problem: CutProblem, choices: RecomputeMoments) -> RecomputeProblem:
        """Returns the problem that also chooses which stages recompute.

        Args: `problem` has the order in which every stage recomputes; `choices` are the moments of that order.
        """
        row, prefix, launch = COMPUTE.index(Kind.R), problem.prefix_ns.copy(), problem.launch_ns.copy()
        again, begun = prefix[row].copy(), int(launch[row])
        prefix[row], launch[row] = 0, 0
        given = {each.name: getattr(problem, each.name) for each in fields(problem)}
        given |= {"prefix_ns": prefix, "launch_ns": launch}
        return RecomputeProblem(**given, choices=choices, again_prefix_ns=again, again_launch_ns=begun)

    @property
    def moments(self) -> tuple[Moments, ...]:
        return self.choices.least

    @property
    def part_moments(self) -> tuple[IntArray, ...]:
        return tuple(undominated(each.rows.sum(1)) for each in self.moments)

    def pointed(self, cut: IntArray, flag: int) -> IntArray:
        return np.concatenate([cut, np.full(self.stages, flag, np.int64)])

    def bounds(self, points: IntArray) -> IntArray:
        return points[..., : self.stages + 1]

    def flags(self, points: IntArray) -> IntArray:
        return points[..., self.stages + 1 :]

    def again(self, point: IntArray) -> frozenset[int]:
        return frozenset(np.flatnonzero(self.flags(point)).tolist())

    def durations(self, cuts: IntArray) -> Durations:
        cuts = np.atleast_2d(cuts)
        edges = self.bounds(cuts)
        found = super().durations(edges)
        for p in range(self.stages):
            took = self.redone_ns(p, edges[:, p], edges[:, p + 1])
            found.kinds[:, _AGAIN, p] = self.flags(cuts)[:, p] * took
        return found

    def redone_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        line = self.again_prefix_ns[stage]
        took: IntArray = line[high] - line[low] + self.again_launch_ns
        return took

    def memory(self, cuts: IntArray) -> IntArray:
        out: IntArray = np.zeros((len(cuts), self.schedule.workers), np.int64)
        for flags in np.unique(self.flags(cuts), axis=0):
            same = (self.flags(cuts) == flags).all(1)
            edges = self.bounds(cuts[same])
            low, high = edges[:, :-1], edges[:, 1:]
            moments = self.choices.moments(frozenset(np.flatnonzero(flags).tolist()), self.meter)
            fixed: IntArray = self.fixed_bytes(low, high) @ self.hosted.T
            out[same] = fixed + peaks(
                counted(moments, self.hosted), self.hosted, self.moving_of(low, high, flags > 0)
            )
        return out

    def bytes_of(self, cut: IntArray) -> tuple[IntArray, IntArray]:
        edges, flags = self.bounds(cut), self.flags(cut) > 0
        low, high = edges[:-1], edges[1:]
        return self.fixed_bytes(low, high), _whole(self.moving_of(low, high, flags), ~flags)

    def moving_grid(self, stage: int, flag: int = 0) -> IntArray:
        """Returns the bytes of one micro-batch as the rows of `least` count them.

        Args: `flag` is 0 where the stage recomputes nothing: it keeps what it has saved.
        Returns: [begin, end, part].
        """
        key = GridKey("counted", self.tables.key, (self.shape.sharing, flag, self.order.owes))
        return self._grid(key, lambda i, j: self._counted(i, j, flag))

    def _counted(self, low: IntArray, high: IntArray, flag: int) -> IntArray:
        moving = self.moving_of(low, high, np.bool_(flag))
        return _whole(moving, np.full(moving.shape[:-1], not flag))

    @cached_property
    def most_moving(self) -> IntArray:
        most: IntArray = np.maximum(*(self.moving_grid(0, flag).max((0, 1)) for flag in (0, 1)))
        return most

    def redoes(self, flag: int) -> bool:
        return flag > 0

    def again_ns(self, stage: int, begins: IntArray, ends: IntArray) -> IntArray:
        low, high = begins[:, None], ends[None, :]
        return self.redone_ns(stage, low, np.maximum(low, high))

    def settled(self, cut: IntArray) -> Self:
        raise AssertionError("a choice is a shape of its own")

    def decided(self, low: IntArray, high: IntArray) -> list[tuple[int, Moments]]:
        """Returns the moments of the workers of which every stage has its flag.

        Args: `low` and `high` are the points between which flags may lie.
        Returns: pairs of a worker and its moments.
        """
        least, most = self.flags(low), self.flags(high)
        open_ = frozenset(np.flatnonzero(least != most).tolist())
        known = [w for w, own in enumerate(self.choices.stages_of) if own.isdisjoint(open_)]
        moments = self.choices.moments(self.again(low), self.meter) if known else ()
        return [(worker, moments[worker]) for worker in known]


def _whole(moving: IntArray, saves: BoolArray) -> IntArray:
    """[..., part]: kept bytes are all that is saved where nothing is recomputed."""
    moving[..., _KEPT] = np.where(saves, moving[..., _SAVED], moving[..., _KEPT])
    return moving
