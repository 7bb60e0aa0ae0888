"""The best combination of rows for a box: a game between the rows of a pool and the cuts met so far.

The linear program over the multipliers is small; each solution is priced by the shortest path of `Box.least`, whose
value is a bound whatever the multipliers are. So nothing rests on the precision of the linear program.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from planner.cost import IntArray
from planner.milp.box import Weights, stack, weigh
from planner.milp.mesh import FloatArray
from planner.milp.problem import Problem, Row
from planner.milp.stages import Durations

_OFTEN, _LATEST = 60, 30  # rows at play
_GROWN = 150  # of them, before they are chosen anew


@dataclass(kw_only=True)
class Pool:
    """Rows with the cuts that they were held against."""

    problem: Problem
    memory: Weights
    rows: list[Row] = field(default_factory=list)
    used: list[int] = field(default_factory=list)  # of each row, how often it was in a combination
    weights: Weights = field(init=False)
    cuts: list[IntArray] = field(default_factory=list)
    columns: list[Durations] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    values: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # [row, cut]
    excess: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # [memory row, cut]

    def __post_init__(self) -> None:
        self.weights = stack([], self.problem.stages)

    def add_row(self, row: Row) -> None:
        self.rows.append(row)
        self.used.append(0)
        self.weights = stack([self.weights, weigh(row)], self.problem.stages)
        new = self._along().reshape(1, -1)
        self.values = np.vstack([self.values.reshape(len(self.rows) - 1, len(self.cuts)), new])

    def _along(self) -> FloatArray:
        """Of the latest row, the values of every cut; see `_values`."""
        if not self.columns:
            return np.zeros(0)
        kinds, hops = self.weights.kinds[-1].ravel(), self.weights.hops[-1].ravel()
        total: FloatArray = np.stack([column.kinds[0].ravel() for column in self.columns]) @ kinds
        owner = np.arange(len(self.columns)).repeat([len(column.cells) for column in self.columns])
        counts = hops[np.concatenate([column.cells for column in self.columns])]
        lasts = np.concatenate([column.hop_ns[0] for column in self.columns])
        total += np.bincount(owner, counts * lasts, len(total))
        if not self.problem.chained:
            sizes = np.concatenate([column.hop_bytes[0] for column in self.columns])
            there = np.bincount(owner, (counts != 0) & (sizes > 0), len(total))
            total[there < np.count_nonzero(hops)] = 0.0
        return total

    def find(self, cut: IntArray) -> int | None:
        return self._numbers.get(cut.tobytes())

    def add_cut(self, cut: IntArray) -> int:
        self._numbers[cut.tobytes()] = len(self.cuts)
        column = self.problem.durations(cut)
        self.cuts.append(cut)
        self.columns.append(column)
        new = self._values(column).reshape(-1, 1)
        self.values = np.hstack([self.values.reshape(len(self.rows), len(self.cuts) - 1), new])
        over = _excess(self.problem, self.memory, cut).reshape(-1, 1)
        self.excess = np.hstack([self.excess.reshape(len(self.memory), len(self.cuts) - 1), over])
        return len(self.cuts) - 1

    def _values(self, column: Durations) -> FloatArray:
        """Of every row. 0 where the cut lacks a message that the row counts, and nothing else makes its receiver
        wait."""
        kinds, hops = self.weights.kinds, self.weights.hops
        counts = hops.reshape(len(hops), 2 * self.problem.stages**2)
        found = counts[:, column.cells]
        total: FloatArray = (
            kinds.reshape(len(kinds), column.kinds[0].size) @ column.kinds[0].ravel()
            + found @ column.hop_ns[0]
        )
        if not self.problem.chained:
            there = np.count_nonzero(found[:, column.hop_bytes[0] > 0], 1)
            total[there < np.count_nonzero(counts, 1)] = 0.0
        return total

    def active(self) -> IntArray:
        """The rows that were of use most often, and the latest."""
        count = len(self.rows)
        old = sorted(range(max(0, count - _LATEST)), key=lambda r: (-self.used[r], -r))[:_OFTEN]
        return np.array([*sorted(old), *range(max(0, count - _LATEST), count)], np.int64)

    def useful(self) -> list[Row]:
        """The active rows that were in a combination."""
        return [self.rows[r] for r in self.active().tolist() if self.used[r]]

    def inside(self, low: IntArray, high: IntArray) -> list[int]:
        return [k for k, cut in enumerate(self.cuts) if (cut >= low).all() and (cut <= high).all()]


def _excess(problem: Problem, memory: Weights, cut: IntArray) -> FloatArray:
    low, high = cut[:-1], cut[1:]
    fixed = memory.fixed @ problem.fixed_bytes(low, high)
    moving = np.tensordot(memory.moving, problem.moving_bytes(low, high), 2)
    total: FloatArray = fixed + moving + memory.constant
    return total


class Game:
    """Maximise over multipliers the least value over the cuts; cuts and rows are added one at a time."""

    def __init__(self, pool: Pool, chosen: list[int], scale: float, *, ample: bool = False) -> None:
        """`ample`: as if everything fitted."""
        self.pool, self.scale = pool, scale
        self.memory = pool.memory.part(slice(0, 0)) if ample else pool.memory
        self.active: list[int] = []
        self.columns: list[int] = []
        self.met = len(pool.rows)  # rows of the pool that were looked at
        self.lp: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self.lp.setOptionValue("output_flag", False)
        self.lp.setOptionValue("threads", 1)
        self.lp.addVar(-1e6, 1e6)
        self.lp.changeColCost(0, 1.0)
        self.lp.changeObjectiveSense(highspy.ObjSense.kMaximize)
        for _ in range(len(self.memory)):
            self.lp.addVar(0.0, 1e6)
        self.lp.addRow(1.0, 1.0, 0, np.zeros(0, np.int32), np.zeros(0))
        for row in pool.active().tolist():
            self._add_row(row)
        for k in chosen:
            self.add(k)

    def _add_row(self, row: int) -> None:
        values = self.pool.values[row, self.columns] / -self.scale
        every = np.arange(1 + len(values), dtype=np.int32)
        self.lp.addCol(0.0, 0.0, 1.0, len(every), every, np.append(1.0, values))
        self.active.append(row)

    def grow(self) -> bool:
        """Takes in the rows that the pool has learnt; False where there are too many by now to keep them all."""
        for row in range(self.met, len(self.pool.rows)):
            self._add_row(row)
        self.met = len(self.pool.rows)
        return len(self.active) <= _GROWN

    def add(self, cut: int) -> None:
        self.columns.append(cut)
        value = self.pool.values[self.active, cut] / self.scale
        over = self.pool.excess[: len(self.memory), cut] / -self.memory.constant
        coefficients = np.concatenate([[1.0], -over, -value])
        every = np.arange(len(coefficients), dtype=np.int32)
        self.lp.addRow(-highspy.kHighsInf, 0.0, len(every), every, coefficients)

    def solve(self) -> tuple[float, Weights] | None:
        """Upper estimate of the bound, and the combination to price; None when the solver gives none."""
        self.pool.problem.meter.solved(len(self.active) * len(self.columns))
        self.lp.run()
        if self.lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        x = np.array(self.lp.getSolution().col_value)
        memory, own = x[1 : 1 + len(self.memory)], x[1 + len(self.memory) :]
        used = np.flatnonzero(own > 1e-9)
        if not len(used):
            return None
        rows = np.array(self.active)[used]
        for row in rows.tolist():
            self.pool.used[row] += 1
        mixed = self.pool.weights.part(rows).mixed(own[used] / own[used].sum())
        if len(self.memory):
            rate = np.clip(memory, 0.0, None) * self.scale / -self.memory.constant
            mixed = stack([mixed, self.memory.mixed(rate)], self.pool.problem.stages).mixed(np.ones(2))
        return float(x[0]) * self.scale, mixed

    def mixture(self) -> tuple[IntArray, FloatArray]:
        """Of the last solution: the cuts that its rows cannot refute together, and their shares."""
        weights = abs(np.array(self.lp.getSolution().row_dual[1:]))
        used = np.flatnonzero(weights > 1e-6)
        shares = weights[used] / weights[used].sum()
        return np.array([self.pool.cuts[self.columns[k]] for k in used], np.int64), shares
