"""Finds the best combination of rows for a box: Lagrange multipliers over the rows of a pool, against the cuts met so
far.

The linear program over the multipliers is small. A shortest path (`Box.least`) prices each solution, and its value is
a lower bound whatever the multipliers are. So nothing rests on the precision of the linear program.

`Table` and `Grown` are arrays that grow without a copy each time. Entries never change, so views of them stay true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import highspy
import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, IntArray
from planner.cuts import KINDS, CutProblem, CutRow, Durations
from planner.proof.weights import Weights, stack
from planner.simulate import PARTS

_OFTEN, _LATEST = 60, 30  # active rows: of use most often, and learnt last
_GROWN = 150  # active rows at most, before they are chosen anew


class Table:
    """An array of doubles that grows by rows and by columns."""

    def __init__(self, rows: int = 0) -> None:
        self._shape = (rows, 0)
        self._room: NDArray[np.float64] = np.zeros((max(8, rows), 8))

    @property
    def array(self) -> NDArray[np.float64]:
        return self._room[: self._shape[0], : self._shape[1]]

    def add_row(self, values: NDArray[np.float64]) -> None:
        self._grow(self._shape[0] + 1, self._shape[1])
        self.array[-1] = values

    def add_column(self, values: NDArray[np.float64]) -> None:
        self._grow(self._shape[0], self._shape[1] + 1)
        self.array[:, -1] = values

    def _grow(self, rows: int, columns: int) -> None:
        tall, wide = self._room.shape
        if rows > tall or columns > wide:
            room = np.zeros((2 * tall if rows > tall else tall, 2 * wide if columns > wide else wide))
            room[: self._shape[0], : self._shape[1]] = self.array
            self._room = room
        self._shape = rows, columns


@dataclass(kw_only=True)
class RowPool:
    """The rows learnt for one configuration, with the cuts that they were evaluated at."""

    problem: CutProblem
    memory: Weights
    rows: list[CutRow] = field(default_factory=list)
    used: list[int] = field(default_factory=list)  # how often each row was in a combination
    cuts: list[IntArray] = field(default_factory=list)
    columns: list[Durations] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _hops: Table = field(default_factory=Table)  # [row, one of the messages that any row counts]
    _excess: Table = field(init=False)

    def __post_init__(self) -> None:
        stages = self.problem.stages
        self._excess = Table(len(self.memory))
        self._hops.add_column(np.zeros(0))  # of all messages that no row counts
        self._column: IntArray = np.zeros(2 * stages**2, np.int64)  # of every message, in `_hops`
        self._kinds = Grown((len(KINDS), stages), np.float64)  # [row, kind, stage]
        self._places = Grown((self.problem.width,), np.int64)

    @property
    def excess(self) -> FloatArray:
        """Returns the bytes by which every cut exceeds every row of memory, [memory row, cut]."""
        return self._excess.array

    def part(self, rows: IntArray) -> Weights:
        """Returns rows of time as weights.

        Args: `rows` are their numbers.
        """
        count, stages = len(rows), self.problem.stages
        hops, known = np.zeros((count, 2 * stages**2)), np.flatnonzero(self._column)
        hops[:, known] = self._hops.array[np.ix_(rows, self._column[known])]
        return Weights(
            kinds=self._kinds.array[rows],
            hops=hops.reshape(count, 2, stages, stages),
            fixed=np.zeros((count, stages)),
            moving=np.zeros((count, stages, PARTS)),
            constant=np.zeros(count),
        )

    def add_row(self, row: CutRow) -> None:
        self.rows.append(row)
        self.used.append(0)
        self._kinds.extend(row.kinds[None] / row.steps)
        for cell in row.cells[self._column[row.cells] == 0].tolist():
            self._column[cell] = self._hops.array.shape[1]
            self._hops.add_column(np.zeros(len(self.rows) - 1))
        hops = np.zeros(self._hops.array.shape[1])
        hops[self._column[row.cells]] = row.counts / row.steps
        self._hops.add_row(hops)

    def find(self, cut: IntArray) -> int | None:
        return self._numbers.get(cut.tobytes())

    def add_cut(self, cut: IntArray) -> int:
        number = self._numbers[cut.tobytes()] = len(self.cuts)
        column = self.problem.durations(cut)
        self.cuts.append(cut)
        self.columns.append(column)
        self._places.extend(cut[None])
        self._excess.add_column(_excess(self.problem, self.memory, cut))
        return number

    def values(self, rows: IntArray | slice, cuts: IntArray) -> FloatArray:
        """Returns the nanoseconds of rows at cuts: of a search with thousands of both, few pairs are asked for at a time.

        A value is 0 where the cut lacks a message that the row counts, and nothing else makes its receiver wait.

        Args: `rows` and `cuts` are their numbers.
        Returns: [row, cut].
        """
        kinds, hops = self._kinds.array[rows], self._hops.array[rows]
        spans = np.zeros((len(cuts), len(KINDS) * self.problem.stages))
        wire, sent = np.zeros((2, len(cuts), hops.shape[1]))
        for at, k in enumerate(cuts.tolist()):
            column = self.columns[k]
            places = self._column[column.cells]
            spans[at] = column.kinds[0].ravel()
            wire[at, places], sent[at, places] = column.hop_ns[0], column.hop_bytes[0] > 0
        total: FloatArray = kinds.reshape(len(kinds), spans.shape[1]) @ spans.T + hops @ wire.T
        if not self.problem.chained:
            counted = hops != 0
            total[counted @ sent.T < counted.sum(1)[:, None]] = 0.0
        return total

    def active(self) -> IntArray:
        """Returns the numbers of the rows that were of use most often, and of the latest rows."""
        count = len(self.rows)
        first = max(0, count - _LATEST)
        old = np.lexsort((-np.arange(first), -np.array(self.used[:first], np.int64)))[:_OFTEN]
        return np.concatenate([np.sort(old), np.arange(first, count)])

    def useful(self) -> list[CutRow]:
        """Returns the active rows that were in a combination."""
        return [self.rows[r] for r in self.active().tolist() if self.used[r]]

    def inside(self, low: IntArray, high: IntArray) -> list[int]:
        """Returns the numbers of the cuts met within these windows.

        Args: `low` and `high` are [boundary, then flag].
        """
        every = self._places.array
        found: list[int] = np.flatnonzero(((every >= low) & (every <= high)).all(1)).tolist()
        return found


def _excess(problem: CutProblem, memory: Weights, cut: IntArray) -> FloatArray:
    fixed, moving = problem.bytes_of(cut)
    total: FloatArray = memory.fixed @ fixed + np.tensordot(memory.moving, moving, 2) + memory.constant
    return total


class RowMixLP:
    """The linear program that maximises, over multipliers, the least value over the cuts. Cuts and rows are added to
    it.
    """

    def __init__(self, pool: RowPool, chosen: list[int], scale: float, *, ample: bool = False) -> None:
        """Begins with the active rows of the pool and the `chosen` cuts; `ample` leaves rows of memory out."""
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
        self._add_rows(pool.active())
        for k in chosen:
            self.add(k)

    def _add_rows(self, rows: IntArray) -> None:
        table = self.pool.values(rows, np.array(self.columns, np.int64)) / -self.scale
        columns = np.hstack([np.ones((len(rows), 1)), table])
        count, nothing = columns.shape[1], np.zeros(len(rows))
        starts = np.arange(0, columns.size, count, dtype=np.int32)
        places = np.tile(np.arange(count, dtype=np.int32), len(rows))
        self.lp.addCols(
            len(rows), nothing, nothing, np.ones(len(rows)), columns.size, starts, places, columns.ravel()
        )
        self.active += rows.tolist()

    def grow(self) -> bool:
        """Adds the rows that the pool has learnt since; returns False where there are too many by now to keep them
        all.
        """
        if self.met < len(self.pool.rows):
            self._add_rows(np.arange(self.met, len(self.pool.rows)))
        self.met = len(self.pool.rows)
        return len(self.active) <= _GROWN

    def add(self, cut: int) -> None:
        """Adds a cut to the linear program.

        Args: `cut` is its number in the pool.
        """
        self.columns.append(cut)
        value = self.pool.values(np.array(self.active, np.int64), np.array([cut]))[:, 0] / self.scale
        over = self.pool.excess[: len(self.memory), cut] / -self.memory.constant
        coefficients = np.concatenate([[1.0], -over, -value])
        every = np.arange(len(coefficients), dtype=np.int32)
        self.lp.addRow(-highspy.kHighsInf, 0.0, len(every), every, coefficients)

    def solve(self) -> tuple[float, Weights] | None:
        """Returns an upper estimate of the bound, and the combination of rows to price; None where the solver fails."""
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
        mixed = self.pool.part(rows).mixed(own[used] / own[used].sum())
        if len(self.memory):
            rate = np.clip(memory, 0.0, None) * self.scale / -self.memory.constant
            mixed = stack([mixed, self.memory.mixed(rate)], self.pool.problem.stages).mixed(np.ones(2))
        return float(x[0]) * self.scale, mixed

    def mixture(self) -> tuple[IntArray, FloatArray]:
        """Returns the cuts that the rows of the last solution cannot refute together, and their shares."""
        weights = abs(np.array(self.lp.getSolution().row_dual[1:]))
        used = np.flatnonzero(weights > 1e-6)
        shares = weights[used] / weights[used].sum()
        return np.array([self.pool.cuts[self.columns[k]] for k in used], np.int64), shares


Number = TypeVar("Number", bound=np.generic)


class Grown(Generic[Number]):
    """An array that grows along its first axis."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Number]) -> None:
        """Begins empty; every entry is an array of this shape."""
        self._count = 0
        self._room: NDArray[Number] = np.zeros((8, *shape), dtype)

    @property
    def array(self) -> NDArray[Number]:
        return self._room[: self._count]

    def extend(self, entries: NDArray[Any]) -> None:
        most = self._count + len(entries)
        if most > len(self._room):
            room: NDArray[Number] = np.zeros(
                (max(most, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype
            )
            room[: self._count] = self.array
            self._room = room
        self._room[self._count : most] = entries
        self._count = most
