"""Bounds all cuts of one order stage by stage, whether neighbours talk or not, where a worker has one stage of one pipe.

Tables over all intervals say what a stage needs at least. A time limit then rules stages out, and what is left of the
boundaries, from the first to the last, may be no cut at all. With `a` the begin and `b` the end of stage p:

    load      T >= before + all that the stage computes + its gradient sum and update
    bubble    T >= before + its first forward + the trip to all stages behind it + all that it computes from its first
                   backward on + its gradient sum and update
    return    T >= before + all that it computes up to its last backward + the way of that gradient back
    trips     T >= before + k (forward + backward + the trip to all stages behind it) + the way back, where k
              micro-batches begin one after the other has come back
    channel   T >= before + n messages into the stage + the trip of the last one + the way back

`before` and the way back are the least over the boundaries left of all stages before; the way back ends with what the
first stage does after its last backward. A trip is the least over those behind. Messages count where a layer surely
reads what the layer before it makes. At other boundaries, a stage waits for one that makes what its first layer reads,
and that one waits for its gradient; both pass some stages by.

Every stage has a layer at least. So stage p begins at one of the boundaries p, p + 1, ... and ends at one of p + 1,
p + 2, ..., as many as there are layers more than stages, and one. Tables have these alone, in this order: what ends
stage p - 1 at place i of its table begins stage p at place i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner import limits
from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cuts import COMPUTE, CutProblem
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
    cells = problem.stages * (problem.layers - problem.stages + 1) ** 2
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
        self.problem.meter.priced(8 * self._stages.size)
        if not self.possible(limit - 1):
            return limit
        low, high = min(known, limit - 1), limit - 1  # possible at `high`, and at nothing below `low`
        while high - low > limit * limits.STAGEWISE_NEAR:
            middle = (low + high) // 2
            self.problem.meter.priced(8 * self._stages.size)
            low, high = (low, middle) if self.possible(middle) else (middle + 1, high)
        return low

    def possible(self, most: float) -> bool:
        """Returns whether some cut may take `most` nanoseconds or less."""
        problem, alive = self.problem, self._stages.copy()
        loads, returned, returning = self._work
        micros = problem.shape.micros
        for _ in range(_ROUNDS):
            begun, both = self._before(self._forward, alive), self._before(self._passes, alive)
            trips, behind = self._behind(alive)
            alive &= begun[:, :, None] + loads + self._updates <= most
            waited = self._forward + behind[:, None, :]
            alive &= begun[:, :, None] + waited + returned + self._updates <= most
            alive &= both[:, :, None] + returning <= most
            each = self._passes + behind[:, None, :]
            alive &= both[:, :, None] + self._alternations[:, None, None] * each <= most
            sent = (micros - 1) * np.maximum(*self._messages)
            alive &= (both + sent + trips <= most)[:, :, None]
            reached = np.arange(self._places) == 0
            for p in range(problem.stages):
                alive[p] &= reached[:, None]
                reached = alive[p].any(0)
            if not reached[-1]:
                return False
        return True

    def _before(self, work: FloatArray, alive: BoolArray) -> FloatArray:
        """Returns [stage, begin]: the least of `work` and messages on the way to a stage, and back where they count."""
        stages, ways = self.problem.stages, 2 if work is self._passes else 1
        ends: FloatArray = np.full((stages + 1, self._places), _NEVER)
        found: FloatArray = np.full((stages, self._places), _NEVER)
        found[0, 0] = 0.0
        for p in range(stages):
            if p:
                found[p] = ends[p] + (self._messages[0, p] + (self._messages[1, p] if ways > 1 else 0.0))
                for at, made, _ in self._silent:
                    if p <= at < p + self._places:
                        least = 0.0 if made < 0 else self._least(ends, p, at, range(made + 1, at + 1), -1)
                        found[p, at - p] = least
            own = work[p] + self._last if p == 0 and ways > 1 else work[p]
            ends[p + 1] = np.where(alive[p], found[p][:, None] + own, _NEVER).min(0)
        return found

    def _behind(self, alive: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Returns [stage, begin], the least trip through a stage and all behind it, and [stage, end], that behind it."""
        stages = self.problem.stages
        trips: FloatArray = np.full((stages + 1, self._places), _NEVER)
        behind: FloatArray = np.full((stages, self._places), _NEVER)
        behind[-1, -1] = 0.0
        for p in reversed(range(stages)):
            if p + 1 < stages:
                behind[p] = trips[p + 1] + self._messages[:, p + 1].sum(0)
                for at, _, read in self._silent:
                    if p < at <= p + self._places:
                        ends = range(at, read + 1)
                        least = 0.0 if read < 0 else self._least(trips, p + 1, at, ends, 1)
                        behind[p, at - p - 1] = least
            trips[p] = np.where(alive[p], self._passes[p] + behind[p][None, :], _NEVER).min(1)
        return trips[:-1], behind

    def _least(self, table: FloatArray, stage: int, at: int, places: range, step: int) -> float:
        """Returns the least entry of these boundaries, of stages as far from `stage` as layers between can be."""
        found = _NEVER
        for place in places:
            last = stage + step * abs(place - at)
            first, last = max(min(stage, last), 0), min(max(stage, last), len(table) - 1)
            first, last = (
                max(first, place - self._places + 1),
                min(last, place),
            )  # whose tables have the boundary
            if first <= last:
                own = np.arange(first, last + 1)
                found = min(found, float(table[own, place - own].min()))
        return found

    @property
    def _places(self) -> int:
        return self.problem.layers - self.problem.stages + 1

    @cached_property
    def _begins(self) -> IntArray:
        """Returns [stage, place]: the boundary where a stage begins; it ends at one more."""
        found: IntArray = np.arange(self.problem.stages)[:, None] + np.arange(self._places)
        return found

    @cached_property
    def _stages(self) -> BoolArray:
        """Returns [stage, begin, end]: which stages there are."""
        begins, every = self._begins, np.arange(self._places)
        allowed = self.problem.allowed
        found: BoolArray = allowed[begins][:, :, None] & allowed[begins + 1][:, None, :]
        found &= every[:, None] <= every
        found[0, 1:] = False
        found[-1, :, :-1] = False
        return found

    def _each(self, kind: Kind) -> FloatArray:
        """Returns [stage, begin, end]: the nanoseconds of one action."""
        row = COMPUTE.index(kind)
        prefix = self.problem.prefix_ns[row].astype(np.float64)
        every, begins = np.arange(self.problem.stages)[:, None], self._begins
        before, behind = prefix[every, begins], prefix[every, begins + 1]
        found: FloatArray = behind[:, None, :] - before[:, :, None] + float(self.problem.launch_ns[row])
        return found

    @cached_property
    def _counts(self) -> tuple[dict[Kind, FloatArray], ...]:
        """Returns of each kind of action [stage]: how many a step has, from the first backward on, and up to the last.

        A backward is one whose gradient goes to the stage before.
        """
        problem = self.problem
        found: tuple[dict[Kind, FloatArray], ...] = tuple(
            {kind: np.zeros(problem.stages) for kind in COMPUTE} for _ in range(3)
        )
        for order in problem.schedule.orders:
            own = [x for x in order if x.kind in COMPUTE]
            backward = [i for i, x in enumerate(own) if x.kind in (Kind.B, Kind.I)]
            for i, action in enumerate(own):
                if action.kind is Kind.R and not problem.shape.recompute:
                    continue  # which stages recompute depends on the cut
                for count, there in zip(found, (True, i >= backward[0], i <= backward[-1]), strict=True):
                    count[action.kind][action.stage] += there
        return found

    @cached_property
    def _work(self) -> tuple[FloatArray, ...]:
        """Returns of [stage, begin, end] all that is computed, that from the first backward on, and that up to the last."""
        found: list[FloatArray] = []
        for counts in self._counts:
            own = [(many, kind) for kind, many in counts.items() if many.any()]
            found.append(np.sum([many[:, None, None] * self._each(kind) for many, kind in own], 0))
        return tuple(found)

    @cached_property
    def _forward(self) -> FloatArray:
        return self._each(Kind.F)

    @cached_property
    def _passes(self) -> FloatArray:
        """Returns [stage, begin, end]: a forward pass, and what its gradient waits for on its way to the stage before."""
        kinds = [kind for kind in (Kind.B, Kind.I) if self._counts[0][kind].any()]
        found: FloatArray = self._forward + np.minimum.reduce([self._each(kind) for kind in kinds])
        return found

    @property
    def _last(self) -> FloatArray:
        """Returns [begin, end]: what the first stage computes after its last backward, its gradient sum and update."""
        loads, _, returning = self._work
        found: FloatArray = loads[0] - returning[0] + self._updates[0]
        return found

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
            own = self._begins[p]
            found.append(known[key][own[:, None], own[None, :] + 1])
        return np.stack(found)

    @cached_property
    def _messages(self) -> FloatArray:
        """Returns [act or grad, stage, begin]: what a message between a stage and the one before it takes at least."""
        problem, talk = self.problem, self.problem.tables.talk
        sizes = talk.least_bytes * talk.sure
        found: FloatArray = np.zeros((2, problem.stages, self._places))
        for p in range(1, problem.stages):
            own = sizes[:, self._begins[p]]
            wire = own * problem.byte_ns[p - 1, p] + problem.latency_ns[p - 1, p]
            found[:, p] = np.where(own > 0, np.floor(wire), 0.0)
        return found

    @cached_property
    def _silent(self) -> list[tuple[int, int, int]]:
        """Returns the boundaries whose stages may not talk.

        Each has the last layer that makes what the next reads, -1 where there is none that gets its gradient; and the
        first that reads what the layer before makes, -1 where there is none that hands a gradient straight back.
        """
        edges, found = self.problem.tables.edges, []
        sent = edges.backward & (edges.bytes > 0)
        straight = sent & (edges.previous == edges.made)
        for at in np.flatnonzero(~self.problem.tables.talk.sure).tolist():
            made = int(edges.made[sent & (edges.consumer == at)].max(initial=-1))
            readers: IntArray = edges.consumer[straight & (edges.made == at - 1) & (edges.consumer >= at)]
            found.append((at, made, int(readers.min()) if len(readers) else -1))
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
