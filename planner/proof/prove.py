"""Proves one configuration: a first look that costs little, then branch and bound for what that leaves open.

The first look prices rows by running minima over single boundaries (`separable.py`) and chooses multipliers over
them. Rows and cuts grow in turn. Where no mixture of rows refutes the configuration, the best mixture still narrows
the windows in which the boundaries of a better cut must lie. Only then are arcs built, and branch and bound continues
from there, a number of boxes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner import limits
from planner.arrays import IntArray
from planner.configurations import Configuration
from planner.cuts import CutProblem, CutRow
from planner.proof.boxes import ROUNDING, Box
from planner.proof.branch_and_bound import ProofState, Tree
from planner.proof.descent import UNFIT_NS, Answer, even
from planner.proof.feasible import (
    binding,
    count_arcs,
    every_cut,
    fits_surely,
    fitting,
    memory_weights,
    most_bytes,
    reachable,
    whole,
)
from planner.proof.hull import Windows, surrounded
from planner.proof.multipliers import RowPool
from planner.proof.separable import SeparableRows
from planner.proof.weights import Weights, stack

_FILTERS = 2  # of what the program is written over


@dataclass(kw_only=True)
class ConfigurationProof:
    """The proof of one configuration as far as it goes: bound, windows of a better cut, and the tree where there is
    one.
    """

    problem: CutProblem
    spans: Windows | None  # windows of a better cut; None where there is none
    record: ProofState = field(init=False)
    bound: float = 0.0
    tight: bool = False  # whether memory excludes a cut that could have won
    root: Box | None = None
    tree: Tree | None = None
    rounds: int = limits.ROUNDS
    rows: list[CutRow] = field(default_factory=list)  # useful for this order, whatever its costs
    timed: tuple[float, Windows | None] | None = None  # by time alone: a bound, and where a better cut is

    def __post_init__(self) -> None:
        edges = None if self.spans is None else tuple(map(self.problem.bounds, self.spans))
        self.record = self._fresh(edges[0] if edges is not None and (edges[0] == edges[1]).all() else None)

    def _fresh(self, pinned: IntArray | None) -> ProofState:
        """Returns an empty record; it has no rows of memory, since the first look sees boundaries alone."""
        return ProofState(RowPool(problem=self.problem, memory=stack([], self.problem.stages)), pinned)

    @property
    def open(self) -> bool:
        """Returns whether some cut may still beat the limit."""
        return self.spans is not None and self.bound <= self.record.most

    @property
    def bound_ns(self) -> int:
        """Returns the lower bound in nanoseconds; where no cut beats the limit, the limit."""
        return min(int(np.ceil(self.bound - ROUNDING)), self.record.limit) if self.open else self.record.limit

    def look(self, answer: Answer | None, limit: int) -> None:
        """Takes the first look: bounds all cuts, narrows the windows, and learns rows of the even cut and of the
        answer.
        Args: `answer` is the best cut known of this configuration; `limit` is the time to beat, in nanoseconds.
        """
        self.record.aim(answer, limit)
        if self.spans is None or not self._reachable() or self._overflows():
            self.spans = None
            return
        if self.timed is not None:
            self._adopt(*self.timed)
            return
        self._surround()
        self.timed = self.bound, self.spans
        if self.spans is not None and not fits_surely(self.problem, *self.spans):
            self.tight = True
            self._grow()
        if self.spans is not None and _point(self.spans):
            self.record.learn(self.spans[0])
            self.spans = None
        if self.root is None and len(self.record.pool.rows) * self.problem.stages**2 > limits.KEPT_ROWS:
            self._forget()

    def glance(self, limit: int) -> int:
        """Bounds all cuts by time alone, whatever memory there is, and narrows nothing for good.

        Args: `limit` is the most that is asked of the bound, in nanoseconds.
        Returns: the bound.
        """
        self.record.aim(None, limit)
        if not self._reachable():
            return limit
        self._surround()
        return self.bound_ns

    def _adopt(self, bound: float, spans: Windows | None) -> None:
        """Adopts what time alone says of the configuration in which no stage recomputes: it holds whatever
        recomputes. Arcs wait until the proof continues.
        """
        assert self.spans is not None
        self.bound, self.tight = bound, True
        if spans is None or not self.open:
            self.spans = None
            return
        edges = self.problem.stages + 1
        self.spans = (
            np.concatenate([spans[0][:edges], self.spans[0][edges:]]),
            np.concatenate([spans[1][:edges], self.spans[1][edges:]]),
        )

    def _surround(self) -> None:
        assert self.spans is not None
        if _point(self.spans):
            return
        self._begin()
        if self.record.answer is not None:
            self.record.learn(self.record.answer.cut)
        bound, self.spans = surrounded(self.record, SeparableRows(self.problem), self.spans, self.rounds)
        self.bound = max(self.bound, bound)
        self.rows = self.record.pool.useful()

    def _begin(self) -> None:
        """Begins with rows that other configurations of this order have taught, or with rows of the even cut."""
        if self.record.pool.rows:
            return
        for row in self.rows:
            self.record.pool.add_row(row)
        if self.problem.silent and self.problem.stages <= limits.HULL_STAGES:
            return  # the linear program begins by itself
        if self.problem.silent:
            self._begin_within()
            return
        if self.rows:
            self.record.learn(even(self.problem))
        else:
            self.record.around(even(self.problem))

    def _begin_within(self) -> None:
        """Begins with what workers compute, and with rows of the cut of these windows where they compute least."""
        for row in self.problem.loads():
            self.record.pool.add_row(row)
        every = self.record.pool.part(np.arange(len(self.record.pool.rows)))
        assert self.spans is not None
        alike = every.mixed(np.full(len(every), 1 / len(every)))
        _, start = SeparableRows(self.problem).least(alike, *self.spans)
        if len(start):
            self.record.around(start)

    def _forget(self) -> None:
        """Drops the rows: of many stages they take megabytes each. They are learnt again if the proof continues."""
        known, self.record = self.record, self._fresh(self.record.pinned)
        self.record.aim(known.answer, known.limit)

    def _arm(self) -> None:
        """Adds rows of memory to the record, which had rows of time only."""
        assert self.root is not None
        memory, known = binding(self.root, memory_weights(self.problem)), self.record
        if len(memory) == len(known.pool.memory):
            return
        pool = RowPool(problem=self.problem, memory=memory)
        for row in known.pool.rows:
            pool.add_row(row)
        for cut in known.pool.cuts:
            pool.add_cut(cut)
        self.record = ProofState(pool, known.pinned)
        self.record.aim(known.answer, known.limit)

    def _reachable(self) -> bool:
        shape = self.problem.shape
        chain = shape.pipes == shape.chunks == 1 and shape.update == "barrier" and self.problem.chained
        return not chain or reachable(self.problem, self.record.limit - 1)

    def _overflows(self) -> bool:
        """Returns whether nothing fits, as far as each stage seen alone tells; asked while no plan is known at all."""
        if self.record.limit < UNFIT_NS or not self._light():
            return False
        assert self.spans is not None
        if fits_surely(self.problem, *self.spans) or whole(self.problem, *self.spans) is not None:
            return False
        self.tight = True
        return True

    def _light(self) -> bool:
        """Returns whether arcs and rows of memory are few enough to be built."""
        shared = (self.problem.hosted > 0).sum(1) > 1
        moments = sum(len(rows) for rows, many in zip(self.problem.moments, shared, strict=True) if many)
        small = moments * self.problem.stages**2 <= limits.MOMENTS
        return small and self.spans is not None and count_arcs(self.problem, *self.spans) <= limits.ARCS

    def _wide(self) -> bool:
        """Returns whether the linear program should narrow the windows before arcs are built."""
        if self.spans is None or self.problem.stages > limits.HULL_STAGES:
            return False
        return count_arcs(self.problem, *self.spans) > limits.FILTERED_ARCS

    def _grow(self) -> None:
        """Builds the arcs that fit and that single rows do not refute, where they are not too many."""
        if self.spans is None or self.root is not None or not self._light():
            return
        box = every_cut(self.problem, *self.spans)
        rows = self.record.pool.part(self.record.pool.active())
        box = None if box is None else box.filtered(rows, self.record.most)
        self.root = None if box is None else fitting(box)
        self.tight = box is not None and (self.root is not box or _may_exceed(box))
        if self.root is None:
            self.spans = None

    def prove(self, answer: Answer | None, limit: int, nodes: int, work_ns: float) -> None:
        """Continues branch and bound from the boundary ranges that can still beat `limit`.
        Args: at most `nodes` boxes, and until the meter shows `work_ns`; `answer` and `limit` are as in `look`.
        """
        lower = limit < self.record.limit
        self.record.aim(answer, limit)
        if not self.open or self.spans is None:
            return
        if self.timed is not None and self.problem.flagged and self._light():
            self._begin()
        elif self.root is None and self.rounds and self._wide():
            self.rounds = 0
            self._surround()
        elif self.root is None and (lower or not self.record.pool.rows or not self._light()):
            self.rounds *= 2
            self._surround()
        self._grow()
        if not self.open or self.root is None:
            return
        if self.tree is None:
            self._arm()
            self.tree = Tree(self.record, self.root, self.bound)
        proof = self.tree.prove(nodes, work_ns)
        self.bound = max(self.bound, float(proof.bound_ns))
        if proof.closed:
            self.spans = None


@dataclass(kw_only=True)
class ConfigurationState:
    """One configuration, as far as it was looked into; or the cuts of it that `problem.silent` names."""

    shape: Configuration
    problem: CutProblem
    answer: Answer | None = None
    bound_ns: int = 0
    closing: ConfigurationProof | None = None

    @property
    def turn(self) -> tuple[int, Configuration, int]:
        """Returns what decides whose proof continues first: the lowest bound."""
        return self.bound_ns, self.shape, self.problem.silent or 0

    def left(self, limit: int) -> tuple[Box, Weights] | None:
        """Returns the cuts that the rows do not refute, and the rows; ties with an answer that takes `limit` stay.

        A box of many arcs is not filtered further: it is too large for the program anyway.
        """
        if self.closing is None or self.closing.root is None or self.problem.flagged:
            return None
        pool, most, box = self.closing.record.pool, limit + ROUNDING, self.closing.root
        rows = pool.part(pool.active())
        spans = SeparableRows(box.problem).narrowed(rows, most, box.low, box.high)
        found = None if spans is None else box.narrowed(*spans)
        for _ in range(_FILTERS):
            if found is not None and sum(int(a.sum()) for a in found.alive) <= limits.FILTERED_ARCS:
                found = found.filtered(rows, most)
        self.bound_ns = limit if found is None else self.bound_ns
        return None if found is None else (found, rows)


def _point(spans: Windows) -> bool:
    return bool((spans[0] == spans[1]).all())


def _may_exceed(box: Box) -> bool:
    """Returns whether workers with several stages lack memory for some cut of the box."""
    problem = box.problem
    if (most_bytes(problem) <= problem.available_bytes).all():
        return False
    rows = binding(box, memory_weights(problem))
    return any(
        -box.least(rows.part(slice(m, m + 1)).mixed(np.array([-1.0])))[0] > 0 for m in range(len(rows))
    )
