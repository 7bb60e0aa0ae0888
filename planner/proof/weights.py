"""Rows of the proof: lower bounds on the step, each a linear function of path counts and of memory.

Several rows are kept as one value of arrays, so that a box prices them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cuts import KINDS, CutProblem, CutRow, Durations
from planner.simulate import PARTS

_PATHS, _FRESH = 96, 16  # paths kept at most, and how many of the latest are not forgotten
_MISSED = 3  # simulated in vain: one of them has a path worth learning
_PRICED_NS = 20_000.0  # work of pricing a cut by paths, by the meter


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Several rows at once: each prices arcs as a linear function of their columns. Rows of memory are alike."""

    kinds: FloatArray  # [row, kind, stage]
    hops: FloatArray  # [row, act or grad, sender, receiver]
    fixed: FloatArray  # [row, stage]: of `fixed_bytes`
    moving: FloatArray  # [row, stage, part]
    constant: FloatArray  # [row]

    def __len__(self) -> int:
        return len(self.constant)

    def part(self, rows: slice | IntArray) -> Weights:
        return Weights(
            kinds=self.kinds[rows],
            hops=self.hops[rows],
            fixed=self.fixed[rows],
            moving=self.moving[rows],
            constant=self.constant[rows],
        )

    def mixed(self, shares: FloatArray) -> Weights:
        """Returns one row: the combination of all rows with these shares."""
        return Weights(
            kinds=np.tensordot(shares, self.kinds, 1)[None],
            hops=np.tensordot(shares, self.hops, 1)[None],
            fixed=(shares @ self.fixed)[None],
            moving=np.tensordot(shares, self.moving, 1)[None],
            constant=np.array([shares @ self.constant]),
        )


def stack(parts: Sequence[Weights], stages: int) -> Weights:
    if not parts:
        return empty(0, stages)
    return Weights(
        kinds=np.concatenate([w.kinds for w in parts]),
        hops=np.concatenate([w.hops for w in parts]),
        fixed=np.concatenate([w.fixed for w in parts]),
        moving=np.concatenate([w.moving for w in parts]),
        constant=np.concatenate([w.constant for w in parts]),
    )


def empty(rows: int, stages: int) -> Weights:
    return Weights(
        kinds=np.zeros((rows, len(KINDS), stages)),
        hops=np.zeros((rows, 2, stages, stages)),
        fixed=np.zeros((rows, stages)),
        moving=np.zeros((rows, stages, PARTS)),
        constant=np.zeros(rows),
    )


def weigh(row: CutRow) -> Weights:
    stages = row.kinds.shape[1]
    return replace(empty(1, stages), kinds=row.kinds[None] / row.steps, hops=row.hops[None] / row.steps)


class PathRows:
    """Paths learnt at some cuts of a configuration: they show of most others, unsimulated, that they take too long."""

    def __init__(self, problem: CutProblem) -> None:
        """Begins without a path; `problem` says whose cuts are asked for."""
        self._problem = problem
        self._rows = empty(0, problem.stages)
        self._used: IntArray = np.zeros(0, np.int64)  # how often each path was the longest

    def times(self, cuts: IntArray, allowed: FloatArray) -> IntArray:
        """Simulates the cuts that may take less than they are allowed.

        Args: `cuts` [cut, point]; `allowed` nanoseconds of each.
        Returns: [cut] nanoseconds; of a cut that takes as much as it is allowed, or more, something between.
        """
        talking = self._problem.talking
        spans = talking.durations(cuts)
        talk: BoolArray = self._problem.chained | self._problem.talks(cuts)
        least = self._least(spans) * talk
        self._problem.meter.spent_ns += _PRICED_NS * len(cuts)
        left = np.flatnonzero(least <= allowed)
        out: IntArray = np.ceil(least).astype(np.int64)
        if len(left):
            out[left] = self._problem.times(cuts[left], int(np.ceil(allowed[left].max())))
            missed = left[(out[left] >= allowed[left]) & talk[left]]
            if len(missed) >= _MISSED:
                self._learn(cuts[missed[int((out[missed] - least[missed]).argmax())]])
        return out

    def _least(self, spans: Durations) -> FloatArray:
        """Returns the longest of the paths for each cut, 0 without any."""
        rows, count = self._rows, len(spans.kinds)
        if not len(rows):
            return np.zeros(count)
        hops = rows.hops.reshape(len(rows), -1)[:, spans.cells]
        values = spans.kinds.reshape(count, -1).astype(np.float64) @ rows.kinds.reshape(len(rows), -1).T
        values += spans.hop_ns.astype(np.float64) @ hops.T
        np.add.at(self._used, values.argmax(1), 1)
        return np.asarray(values.max(1)) - 1.0  # of rounding

    def _learn(self, cut: IntArray) -> None:
        """Learns the path of a cut; forgets the path that was the longest least often where there are too many."""
        row = weigh(self._problem.talking.critical(cut)[0])
        kept = np.arange(len(self._rows))
        if len(kept) >= _PATHS:
            kept = np.delete(kept, int(self._used[: _PATHS - _FRESH].argmin()))
        self._rows = stack([self._rows.part(kept), row], self._problem.stages)
        self._used = np.append(self._used[kept], 0)
