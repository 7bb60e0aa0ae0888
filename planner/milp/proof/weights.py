"""Rows of the proof: lower bounds on the step, each a linear function of path counts and of memory.

Several rows are kept as one value of arrays, so that a box prices them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.milp.cut.problem import CutRow
from planner.milp.cut.stage_costs import KINDS
from planner.simulate import PARTS


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
