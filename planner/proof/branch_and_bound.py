"""Proves by branch and bound that no cut of a configuration is faster.

Boxes of cuts are taken up with the lowest lower bound first; Lagrange multipliers over rows bound each box. A box is
done when its bound reaches the limit or when it has become a point, which is simulated. Times are integers, so a
bound above `limit - 1` refutes every cut below the limit. Boxes left when the nodes are used up give the reported
bound.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from planner.arrays import IntArray
from planner.cuts import CutProblem
from planner.proof.boxes import ROUNDING, Box
from planner.proof.descent import UNFIT_NS, Answer, fits, work_ns
from planner.proof.feasible import moment_weights
from planner.proof.multipliers import RowMixLP, RowPool
from planner.proof.separable import SeparableRows
from planner.proof.weights import Weights

_PRICINGS = 60  # shortest paths a box, at most
_ROUNDS = 3  # of filtering by single rows
_CHEAP = 400_000  # arcs x rows
_SPARE, _SPARE_AT_ROOT = 3, 40  # pricings of a box that cannot be refuted, for a better bound and fewer arcs
_BETWEEN = 3  # rows between cuts that a box may ask for where flags tell more
_GAIN = 1e-4  # of the limit: what a row between cuts must add to be of use
_SLOWER = 1.3  # a worker, in the cuts around one
_CLOSE = 1e-3  # of the limit: bound and estimate as near as they need be


class ProofState:
    """The rows, cuts and best answer of one configuration, and the time that an answer has to beat."""

    def __init__(self, pool: RowPool, pinned: IntArray | None = None) -> None:
        """Begins without an answer; where a cut is pinned, no other cut can become one."""
        self.pool = pool
        self.pinned = pinned
        self.answer: Answer | None = None  # the best cut met, if it beat the limit then
        self.limit = UNFIT_NS

    @property
    def problem(self) -> CutProblem:
        """Returns the cut problem that the rows and cuts belong to."""
        return self.pool.problem

    @property
    def most(self) -> float:
        """Returns the bound above which every cut below the limit is refuted: times are integers."""
        return self.limit - 1 + ROUNDING

    def aim(self, answer: Answer | None, limit: int) -> None:
        """Sets what is to be beaten, and the best cut known of this configuration.

        Args: `answer` replaces a worse one; `limit`, in nanoseconds, only ever falls.
        """
        if answer is not None and answer.better(self.answer):
            self.answer = answer
            self.limit = min(self.limit, answer.ns)
        self.limit = min(self.limit, limit)

    def around(self, cut: IntArray) -> None:
        """Learns the row of a cut, and the rows that appear where one worker is slower.

        Args: `cut` need not be new.
        """
        self.learn(cut)
        if self.problem.shape.update == "barrier":
            for row in self.problem.slowed(cut, _SLOWER):
                self.pool.add_row(row)

    def learn(self, cut: IntArray) -> int:
        """Simulates a cut, which may be a better answer, and adds its row where the pool does not refute the cut.

        Args: `cut` is simulated only where no row of the pool shows that it is too slow.
        Returns: its number in the pool.
        """
        number = self.pool.find(cut)
        if number is not None:
            return number
        number = self.pool.add_cut(cut)
        known = self.pool.values(slice(None), np.array([number])).max(initial=0.0)
        if self.problem.patterned and self._rough(number, known):
            return number
        if len(self.pool.rows) and known > self.limit + ROUNDING:
            return number
        row, value = self.problem.critical_of(self.pool.columns[number])
        if self.pinned is None or (cut[: len(self.pinned)] == self.pinned).all():
            self._consider(cut, self.problem.exact_ns(cut, value))
        if not len(self.pool.rows) or value > known:
            self.pool.add_row(row)
        return number

    def _rough(self, number: int, known: float) -> bool:
        """Returns whether a path between neighbours alone shows that a cut is no better answer."""
        row, value = self.problem.rough(self.pool.columns[number])
        if value > known:
            self.pool.add_row(row)
        return max(value, known) > self.most

    def _consider(self, cut: IntArray, ns: int) -> None:
        found = Answer(cut=cut, ns=ns)
        tied = ns == self.limit and self.answer is not None and found.better(self.answer)
        if (ns < self.limit or tied) and fits(self.problem, cut[None, :])[0]:
            self.answer, self.limit = found, ns

    def learn_between(self, game: RowMixLP, most: float) -> bool:
        """Adds the row of the game's mixture of cuts.

        Args: `most` is the value of the mixture by the rows known before, in nanoseconds.
        Returns: whether the new row refutes the mixture better by enough to be of use.
        """
        cuts, shares = game.mixture()
        if len(cuts) < 2 or (cuts[0] == cuts).all():
            return False
        self.pool.add_row(self.problem.critical_between(cuts, shares))
        found = {tuple(self.pool.cuts[k].tolist()): k for k in game.columns}
        met = np.array([found[tuple(cut)] for cut in cuts.tolist()])
        values = self.pool.values(slice(-1, None), met)[0]
        return bool(values @ shares > most + max(1.0, _GAIN * self.limit))


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The outcome of branch and bound for one configuration."""

    answer: Answer | None  # the best cut met, if it beats the limit
    bound_ns: int  # no cut of the shape takes less
    nodes: int
    closed: bool


class Tree:
    """The open boxes of one configuration, which branch and bound continues on request."""

    def __init__(self, record: ProofState, root: Box, bound: float = 0.0) -> None:
        self.record, self.pool, self.problem = record, record.pool, record.problem
        self.nodes = self._number = 0
        self._open: list[tuple[float, int, Box]] = [(bound, 0, root)]
        self.lines = SeparableRows(record.problem)

    def prove(self, budget: int, work_ns: float) -> Proof:
        """Continues branch and bound until no box is open, or until its budget is spent.

        Args: `budget` is a number of further boxes; `work_ns` is the state of the meter at which to stop.
        Returns: the best answer met, and the lower bound that holds now.
        """
        stop = self.nodes + budget
        while self._open and self.nodes < stop and self.problem.meter.spent_ns < work_ns:
            bound, _, box = heapq.heappop(self._open)
            if self._refuted(bound):
                self._open = []
                break
            self.nodes += 1
            for value, child in self._expand(box, bound):
                self._number += 1
                heapq.heappush(self._open, (value, self._number, child))
        left = min((entry[0] for entry in self._open), default=float(self.record.limit))
        bound_ns = self.record.limit if self._refuted(left) else int(np.ceil(left - ROUNDING))
        return Proof(
            answer=self.record.answer,
            bound_ns=bound_ns,
            nodes=self.nodes,
            closed=bound_ns == self.record.limit,
        )

    def _refuted(self, bound: float) -> bool:
        return bound > self.record.most

    def _expand(self, box: Box, bound: float) -> list[tuple[float, Box]]:
        narrow = self._filtered(box)
        if narrow is None:
            return []
        if narrow.point:
            self.record.learn(narrow.low)
            return []
        bound, narrow, support = self._play(narrow, bound)
        if narrow is None or self._refuted(bound):
            return []
        if narrow.point:
            self.record.learn(narrow.low)
            return []
        p, at = _branch(self.problem, narrow, support)
        return [(bound, child) for child in narrow.split(p, at) if child is not None]

    def _filtered(self, box: Box) -> Box | None:
        """Returns the box without what single rows refute: boundaries first, then arcs where that is cheap."""
        most = self.record.most
        rows = self.pool.part(self.pool.active())
        spans = self.lines.narrowed(rows, most, box.low, box.high)
        narrow = None if spans is None else box.narrowed(*spans)
        for _ in range(_ROUNDS):
            if narrow is None:
                return None
            box = narrow
            if len(self.pool.memory):
                narrow = box.filtered(self.pool.memory, 0.0)
            known = self.problem.decided(narrow.low, narrow.high) if narrow is not None else []
            if narrow is not None and known:
                narrow = narrow.filtered(moment_weights(self.problem, known), 0.0)
            if narrow is not None and (self.nodes == 1 or len(rows) * box.cells <= _CHEAP):
                narrow = narrow.filtered(rows, most)
            if narrow is box:
                break
        return narrow

    def _play(self, box: Box, bound: float) -> tuple[float, Box | None, list[IntArray]]:
        """Bounds a box by mixtures of rows; returns the bound, the box without refuted arcs, and the last cuts met."""
        chosen = self.pool.inside(box.low, box.high)
        if not chosen:
            chosen = [self.record.learn(_middle(box))]
        game: RowMixLP | None = None
        spare = _SPARE_AT_ROOT if self.nodes == 1 else _SPARE
        between = _BETWEEN if self.problem.flagged else _PRICINGS
        best: Weights | None = None
        for _ in range(_PRICINGS):
            if game is None or not game.grow():
                game = RowMixLP(self.pool, chosen, float(self.record.limit))
            solved = game.solve()
            if solved is None:
                break
            most, mixed = solved
            if most <= self.record.limit - 1:  # these rows cannot refute the box
                if between > 0 and self.record.learn_between(game, most):
                    between -= 1
                    continue
                spare -= 1
                if spare < 0:
                    break
            value, cut = box.least(mixed)
            if value > bound:
                bound, best = value, mixed
            if self._refuted(bound):
                return bound, box, []
            if most - value < max(0.25, _CLOSE * self.record.limit) or any(
                (self.pool.cuts[k] == cut).all() for k in chosen
            ):
                break
            chosen.append(self.record.learn(cut))
            game.add(chosen[-1])
        narrow = box if best is None else box.filtered(best, self.record.most)
        return bound, narrow, [self.pool.cuts[k] for k in chosen[-8:]]


def _middle(box: Box) -> IntArray:
    """Returns some cut of the box: from each arc the middle one of the arcs that lead on, since boxes are trimmed."""
    cut, at = [int(box.low[0])], 0
    for p, alive in enumerate(box.alive):
        onward = np.flatnonzero(alive[at])
        at = int(onward[len(onward) // 2])
        cut.append(int(box.low[p + 1]) + at)
    return np.concatenate([np.array(cut, np.int64), box.high[len(cut) :]])


def _branch(problem: CutProblem, box: Box, support: list[IntArray]) -> tuple[int, int]:
    """Returns where to split a box: the boundary or flag and its value.

    It is halfway between the last cuts, where they differ by most work; else the middle of the widest window.
    """
    edges = problem.stages + 1
    if len(support) > 1:
        table, line = np.array(support), work_ns(problem)
        low, high = table.min(0), table.max(0)
        apart = line[high[:edges]] - line[low[:edges]]
        open_ = np.flatnonzero(low[edges:] < high[edges:])
        if len(open_):
            held = (line[table[:, 1:edges]] - line[table[:, : edges - 1]]).mean(0)[open_]
            if held.max() > apart.max():
                return edges + int(open_[held.argmax()]), 0
        p = int(apart.argmax())
        if high[p] > low[p]:
            half = (line[low[p]] + line[high[p]]) / 2
            at = int(low[p] + np.searchsorted(line[low[p] : high[p] + 1], half, side="right")) - 1
            return p, int(np.clip(at, box.low[p], box.high[p] - 1))
    p = int((box.high - box.low).argmax())
    return p, int((box.low[p] + box.high[p]) // 2)
