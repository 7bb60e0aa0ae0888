"""Bounds all cuts of one order stage by stage, whether neighbours talk or not, where a worker has one stage of one pipe.

Tables over all intervals say what a stage needs at least. A time limit then rules stages out, and what is left of the
boundaries, from the first to the last, may be no cut at all. With `a` the begin and `b` the end of stage p:

    load      T >= before + all that the stage computes + its gradient sum and update
    return    T >= before + all that it computes + the way of the last gradient back, where backward passes are whole
    trips     T >= before + k (forward + backward + the trip to all stages behind it) + the way back, where k
              micro-batches begin one after the other has come back
    channel   T >= before + n messages into the stage + the trip of the last one + the way back

`before` and the way back are the least over the boundaries left of all stages before; a trip is the least over those
behind. Messages count where a layer surely reads what the layer before it makes. At other boundaries, a stage waits for
one that makes what its first layer reads, and that one waits for its gradient; both pass some stages by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.milp import limits
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.stage_costs import COMPUTE
from planner.schedule import Kind

_NEVER = np.inf
_ROUNDS = 2  # of ruling stages out, each with the boundaries that the one before left


def stagewise_ns(problem: CutProblem, limit: int, known: int) -> float:
    """Returns a lower bound of all cuts, at most `limit`, in nanoseconds; 0 where none is worked out.

    Args: `known` is a lower bound already.
    """
    bound = None if problem.flagged else stagewise(problem)
    return 0.0 if bound is None else float(bound.least_ns(limit, known))


def stagewise(problem: CutProblem) -> StagewiseBound | None:
    """Returns the bound of all cuts of a problem; None where it says nothing, or takes too long.

    Args: `problem` may be of any cuts: the bound holds for those in which some neighbours do not talk, too.
    """
    shape = problem.shape
    alone = shape.pipes == shape.chunks == 1 and shape.update == "barrier" and problem.fixed is None
    cells = problem.stages * (problem.layers + 1) ** 2
    if not alone or problem.stages < 2 or cells > limits.STAGEWISE_CELLS:
        return None
    return StagewiseBound(problem)


@dataclass(frozen=True, eq=False)
class StagewiseBound:
    """What each stage of a problem needs at least, for any begin and end."""

    problem: CutProblem

    def least_ns(self, limit: int, known: int = 0) -> int:
        """Returns a lower bound in nanoseconds: no cut takes less. It is `limit` where no cut takes less than that.

        Args: `limit` is the most that is asked for; `known` is a lower bound.
        """
        self.problem.meter.priced(8 * self._loads.size)
        if not self.possible(limit - 1):
            return limit
        low, high = min(known, limit - 1), limit - 1  # possible at `high`, and at nothing below `low`
        while high - low > limit * limits.STAGEWISE_NEAR:
            middle = (low + high) // 2
            self.problem.meter.priced(8 * self._loads.size)
            low, high = (low, middle) if self.possible(middle) else (middle + 1, high)
        return low

    def possible(self, most: float) -> bool:
        """Returns whether some cut may take `most` nanoseconds or less."""
        problem, alive = self.problem, self._stages.copy()
        micros = problem.shape.micros
        for _ in range(_ROUNDS):
            begun, both = self._before(self._forward, alive), self._before(self._passes, alive)
            trips, behind = self._behind(alive)
            alive &= begun[:, :, None] + self._loads + self._updates <= most
            if self._whole:
                alive &= both[:, :, None] + self._loads <= most
            each = self._passes + behind[:, None, :]
            alive &= both[:, :, None] + self._alternations[:, None, None] * each <= most
            sent = (micros - 1) * np.maximum(*self._messages)
            alive &= (both + sent + trips <= most)[:, :, None]
            reached = np.zeros(problem.layers + 1, np.bool_)
            reached[0] = True
            for p in range(problem.stages):
                alive[p] &= reached[:, None]
                reached = alive[p].any(0)
            if not reached[problem.layers]:
                return False
        return True

    def _before(self, work: FloatArray, alive: BoolArray) -> FloatArray:
        """Returns [stage, begin]: the least of `work` and messages on the way to a stage, and back where they count."""
        problem, ways = self.problem, 2 if work is self._passes else 1
        ends: FloatArray = np.full((problem.stages + 1, problem.layers + 1), _NEVER)
        found: FloatArray = np.full((problem.stages, problem.layers + 1), _NEVER)
        found[0, 0] = 0.0
        for p in range(problem.stages):
            if p:
                sent = self._messages[0, p] + (self._messages[1, p] if ways > 1 else 0.0)
                found[p] = ends[p] + sent
                for at, made in self._unsure:
                    found[p, at] = 0.0 if made < 0 else self._least(ends, p, at, range(made + 1, at + 1), -1)
            ends[p + 1] = np.where(alive[p], found[p][:, None] + work[p], _NEVER).min(0)
        return found

    def _behind(self, alive: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Returns [stage, begin], the least trip through a stage and all behind it, and [stage, end], that behind it."""
        problem = self.problem
        trips: FloatArray = np.full((problem.stages + 1, problem.layers + 1), _NEVER)
        behind: FloatArray = np.full((problem.stages, problem.layers + 1), _NEVER)
        behind[-1, -1] = 0.0
        for p in reversed(range(problem.stages)):
            if p + 1 < problem.stages:
                behind[p] = trips[p + 1] + self._messages[:, p + 1].sum(0)
                for at, read in self._unread:
                    ends = range(at, read + 1)
                    behind[p, at] = 0.0 if read < 0 else self._least(trips, p + 1, at, ends, 1)
            trips[p] = np.where(alive[p], self._passes[p] + behind[p][None, :], _NEVER).min(1)
        return trips[:-1], behind

    def _least(self, table: FloatArray, stage: int, at: int, places: range, step: int) -> float:
        """Returns the least entry of these places, of stages as far from `stage` as layers between can be."""
        found = _NEVER
        for place in places:
            last = stage + step * abs(place - at)
            first, last = min(stage, last), max(stage, last)
            found = min(found, float(table[max(first, 0) : min(last, len(table) - 1) + 1, place].min()))
        return found

    @cached_property
    def _stages(self) -> BoolArray:
        """Returns [stage, begin, end]: which stages there are."""
        problem, every = self.problem, np.arange(self.problem.layers + 1)
        may = (every[:, None] < every[None, :]) & problem.allowed[:, None] & problem.allowed[None, :]
        found: BoolArray = np.repeat(may[None], problem.stages, 0)
        found[0, 1:] = False
        found[-1, :, :-1] = False
        return found

    def _each(self, kind: Kind) -> FloatArray:
        """Returns [stage, begin, end]: the nanoseconds of one action."""
        row = COMPUTE.index(kind)
        prefix = self.problem.prefix_ns[row].astype(np.float64)
        found: FloatArray = prefix[:, None, :] - prefix[:, :, None] + float(self.problem.launch_ns[row])
        return found

    @cached_property
    def _counts(self) -> dict[Kind, FloatArray]:
        """Returns of each kind of action [stage]: how many a step has."""
        found = {kind: np.zeros(self.problem.stages) for kind in COMPUTE}
        for order in self.problem.schedule.orders:
            for action in order:
                if action.kind in found:
                    found[action.kind][action.stage] += 1
        if not self.problem.shape.recompute:
            found[Kind.R][:] = 0  # which stages recompute depends on the cut
        return found

    @property
    def _whole(self) -> bool:
        return not self._counts[Kind.I].any()

    @cached_property
    def _forward(self) -> FloatArray:
        return self._each(Kind.F)

    @cached_property
    def _passes(self) -> FloatArray:
        """Returns [stage, begin, end]: a forward pass, and what its gradient waits for on its way to the stage before."""
        kinds = [kind for kind in (Kind.B, Kind.I) if self._counts[kind].any()]
        found: FloatArray = self._forward + np.minimum.reduce([self._each(kind) for kind in kinds])
        return found

    @cached_property
    def _loads(self) -> FloatArray:
        """Returns [stage, begin, end]: all that a stage computes in a step."""
        own = [(many, kind) for kind, many in self._counts.items() if many.any()]
        total: FloatArray = np.sum([many[:, None, None] * self._each(kind) for many, kind in own], 0)
        return total

    @cached_property
    def _updates(self) -> FloatArray:
        """Returns [stage, begin, end]: a gradient sum of what no other stage uses, and its update."""
        problem, every = self.problem, np.arange(self.problem.layers + 1)
        low, high = every[:, None], np.maximum(every[:, None], every[None, :])
        known: dict[object, FloatArray] = {}
        found = []
        for p in range(problem.stages):
            key = (
                problem.sums[p],
                problem.slowness[p],
                *(own[p] for own in problem.parts),
                *problem.rows[p : p + 1],
            )
            if key not in known:
                sync = problem.own_sync_ns(p, low, high)
                known[key] = (sync + problem.handed_on_ns(p, low, high, sync)).astype(np.float64)
            found.append(known[key])
        return np.stack(found)

    @cached_property
    def _messages(self) -> FloatArray:
        """Returns [act or grad, stage, begin]: what a message between a stage and the one before it takes at least."""
        problem, talk = self.problem, self.problem.tables.talk
        sizes = talk.least_bytes * talk.sure
        found: FloatArray = np.zeros((2, problem.stages, problem.layers + 1))
        for p in range(1, problem.stages):
            wire = sizes * problem.byte_ns[p - 1, p] + problem.latency_ns[p - 1, p]
            found[:, p] = np.where(sizes > 0, np.floor(wire), 0.0)
        return found

    @cached_property
    def _unsure(self) -> list[tuple[int, int]]:
        """Returns the boundaries whose stages may not talk, each with the last layer that makes what the next reads; -1
        where there is none that gets its gradient.
        """
        edges, found = self.problem.tables.edges, []
        sent = edges.backward & (edges.bytes > 0)
        for at in self._quiet:
            found.append((at, int(edges.made[sent & (edges.consumer == at)].max(initial=-1))))
        return found

    @cached_property
    def _unread(self) -> list[tuple[int, int]]:
        """Returns the same boundaries, each with the first layer that reads what the layer before it makes; -1 where
        there is none that hands a gradient straight back.
        """
        edges, found = self.problem.tables.edges, []
        sent = edges.backward & (edges.bytes > 0) & (edges.previous == edges.made)
        for at in self._quiet:
            readers: IntArray = edges.consumer[sent & (edges.made == at - 1) & (edges.consumer >= at)]
            found.append((at, int(readers.min()) if len(readers) else -1))
        return found

    @property
    def _quiet(self) -> list[int]:
        found: list[int] = np.flatnonzero(~self.problem.tables.talk.sure).tolist()
        return found

    @cached_property
    def _alternations(self) -> IntArray:
        """Returns [stage]: how many micro-batches begin there each after the one before it has come back."""
        found: IntArray = np.zeros(self.problem.stages, np.int64)
        for order in self.problem.schedule.orders:
            waited: dict[int, int | None] = {}
            for action in order:
                stage, begun = action.stage, waited.get(action.stage)
                if action.kind is Kind.F and begun is None:
                    waited[stage] = action.micro
                elif action.kind in (Kind.B, Kind.I) and begun == action.micro and begun is not None:
                    found[stage] += 1
                    waited[stage] = None
        return found
