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
        new = np.array([[self._value(row, column) for column in self.columns]])
        self.values = np.vstack([self.values.reshape(len(self.rows) - 1, len(self.cuts)), new.reshape(1, -1)])

    def find(self, cut: IntArray) -> int | None:
        return self._numbers.get(cut.tobytes())

    def add_cut(self, cut: IntArray) -> int:
        self._numbers[cut.tobytes()] = len(self.cuts)
        column = self.problem.durations(cut)
        self.cuts.append(cut)
        self.columns.append(column)
        new = np.array([self._value(row, column) for row in self.rows]).reshape(-1, 1)
        self.values = np.hstack([self.values.reshape(len(self.rows), len(self.cuts) - 1), new])
        over = _excess(self.problem, self.memory, cut).reshape(-1, 1)
        self.excess = np.hstack([self.excess.reshape(len(self.memory), len(self.cuts) - 1), over])
        return len(self.cuts) - 1

    def _value(self, row: Row, column: Durations) -> float:
        """0 where the cut lacks a message that the row counts, and nothing else makes its receiver wait."""
        counts, sizes = row.hops.ravel(), column.hop_bytes[0]
        found = counts[column.cells[sizes > 0]]
        if np.count_nonzero(found) < np.count_nonzero(counts) and not self.problem.chained:
            return 0.0
        total = (row.kinds * column.kinds[0]).sum() + counts[column.cells] @ column.hop_ns[0]
        return float(total) / row.steps

    def active(self) -> IntArray:
        """The rows that were of use most often, and the latest."""
        count = len(self.rows)
        old = sorted(range(max(0, count - _LATEST)), key=lambda r: (-self.used[r], -r))[:_OFTEN]
        return np.array([*sorted(old), *range(max(0, count - _LATEST), count)], np.int64)

    def inside(self, low: IntArray, high: IntArray) -> list[int]:
        return [k for k, cut in enumerate(self.cuts) if (cut >= low).all() and (cut <= high).all()]


def _excess(problem: Problem, memory: Weights, cut: IntArray) -> FloatArray:
    low, high = cut[:-1], cut[1:]
    fixed = memory.fixed @ problem.fixed_bytes(low, high)
    moving = np.tensordot(memory.moving, problem.moving_bytes(low, high), 2)
    total: FloatArray = fixed + moving + memory.constant
    return total


class Game:
    """Maximise over multipliers the least value over the cuts; cuts are added one at a time."""

    def __init__(self, pool: Pool, chosen: list[int], scale: float, *, ample: bool = False) -> None:
        """`ample`: as if everything fitted."""
        self.pool, self.scale = pool, scale
        self.memory = pool.memory.part(slice(0, 0)) if ample else pool.memory
        self.active = pool.active()
        self.rows = len(self.active)
        self.columns: list[int] = []
        self.lp: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self.lp.setOptionValue("output_flag", False)
        self.lp.setOptionValue("threads", 1)
        for _ in range(self.rows):
            self.lp.addVar(0.0, 1.0)
        for _ in range(len(self.memory)):
            self.lp.addVar(0.0, 1e6)
        self.width = self.rows + len(self.memory)
        self.lp.addVar(-1e6, 1e6)
        self.lp.changeColCost(self.width, 1.0)
        self.lp.changeObjectiveSense(highspy.ObjSense.kMaximize)
        every = np.arange(self.rows, dtype=np.int32)
        self.lp.addRow(1.0, 1.0, self.rows, every, np.ones(self.rows))
        for k in chosen:
            self.add(k)

    def add(self, cut: int) -> None:
        self.columns.append(cut)
        value = self.pool.values[self.active, cut] / self.scale
        over = self.pool.excess[: len(self.memory), cut] / -self.memory.constant
        every = np.arange(self.width + 1, dtype=np.int32)
        coefficients = np.concatenate([-value, -over, [1.0]])
        self.lp.addRow(-highspy.kHighsInf, 0.0, self.width + 1, every, coefficients)

    def solve(self) -> tuple[float, Weights] | None:
        """Upper estimate of the bound, and the combination to price; None when the solver gives none."""
        self.pool.problem.meter.solved(self.rows * len(self.columns))
        self.lp.run()
        if self.lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        x = np.array(self.lp.getSolution().col_value)
        shares = np.where(x[: self.rows] > 1e-9, x[: self.rows], 0.0)
        if shares.sum() <= 0:
            return None
        for r in self.active[shares > 0].tolist():
            self.pool.used[r] += 1
        mixed = self.pool.weights.part(self.active).mixed(shares / shares.sum())
        if len(self.memory):
            rate = np.clip(x[self.rows : self.width], 0.0, None) * self.scale / -self.memory.constant
            mixed = stack([mixed, self.memory.mixed(rate)], self.pool.problem.stages).mixed(np.ones(2))
        return float(x[self.width]) * self.scale, mixed

    def mixture(self) -> tuple[IntArray, FloatArray]:
        """Of the last solution: the cuts that its rows cannot refute together, and their shares."""
        weights = abs(np.array(self.lp.getSolution().row_dual[1:]))
        used = np.flatnonzero(weights > 1e-6)
        shares = weights[used] / weights[used].sum()
        return np.array([self.pool.cuts[self.columns[k]] for k in used], np.int64), shares
