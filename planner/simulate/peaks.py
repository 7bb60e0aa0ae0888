"""The bytes that are held along a worker's order: lifetimes times the bytes of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from planner.arrays import IntArray
from planner.schedule import Action, Schedule
from planner.simulate.lifetimes import PARTS, Spans, StageBytes, lifetimes

# gradients whose squares are added up at a time, for the norm of a step, and bytes that one of them takes meanwhile
SQUARED_ELEMENTS, SQUARE_BYTES = 2**20, 8
_PARTS_OF = attrgetter(*(part.name for part in fields(StageBytes)))


def live_counts(own: Spans, stages: int) -> IntArray:
    """Counts the micro-batches alive while each action of a worker runs.

    The product of one row with the bytes of stages, summed, is what is in use: one linear memory constraint a moment.

    Returns: [position, stage, part] counts, parts as in StageBytes.
    """
    change: NDArray[np.int64] = np.zeros((own.moments + 1, stages, PARTS), np.int64)
    np.add.at(change, (own.start, own.stage, own.part), 1)
    np.add.at(change, (own.end, own.stage, own.part), -1)
    counts: IntArray = change.cumsum(0)[:-1:2]
    return counts


def weights(memory: Sequence[StageBytes]) -> IntArray:
    """Returns the bytes of stages as an array, [stage, part].

    Args: `memory` has one StageBytes a stage.
    """
    return np.array([_PARTS_OF(each) for each in memory], np.int64).reshape(len(memory), PARTS)


def bytes_in_use(own: Spans, table: IntArray) -> IntArray:
    """Sums the bytes in use while each action of a worker runs and after it.

    Args: `table` is [stage, part] bytes, from `weights`.
    Returns: [position, 2] bytes.
    """
    change: IntArray = np.zeros(own.moments + 1, np.int64)
    sizes = table[own.stage, own.part]
    np.add.at(change, own.start, sizes)
    np.add.at(change, own.end, -sizes)
    return change.cumsum()[:-1].reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most bytes that a worker holds, and the action that runs when that is reached first."""

    bytes: int
    position: int  # of the action, in the worker's order, that runs when it is reached first

    def at(self, order: Sequence[Action]) -> Action:
        """Returns the action that runs at the peak.

        Args: `order` is the worker's.
        """
        return order[self.position]


def peaks(schedule: Schedule, memory: Sequence[StageBytes]) -> tuple[Peak, ...]:
    """Finds the most that activations, messages and workspace take on every worker.

    Args: `memory` has one StageBytes a stage.
    Returns: one Peak a worker.
    """
    table, found = weights(memory), []
    for own in lifetimes(schedule):
        during = bytes_in_use(own, table)[:, 0]
        position = int(during.argmax()) if len(during) else 0
        found.append(Peak(bytes=int(during[position]) if len(during) else 0, position=position))
    return tuple(found)


def memory_rows(schedule: Schedule) -> tuple[IntArray, ...]:
    """Finds the moments of every worker that can be its peak for some sizes.

    For any bytes, `peak = max over rows of counts * bytes`.

    Returns: one [row, stage, part] array a worker, whose rows are distinct and none covered by another.
    """
    return tuple(undominated(live_counts(own, schedule.stages)) for own in lifetimes(schedule))


def undominated(counts: IntArray) -> IntArray:
    """Drops repeated rows of counts, and rows that another row covers.

    Args: `counts` is [row, ...]; what follows the first axis is compared as a whole.
    """
    every = counts.reshape(len(counts), -1)
    used = every.any(0)
    flat = np.unique(every[:, used], axis=0)
    flat = flat[flat.sum(1).argsort(kind="stable")[::-1]]
    kept = flat[:0]
    for row in flat:  # a moment is covered only by one of a larger sum
        if not (kept >= row).all(1).any():
            kept = np.vstack([kept, row])
    rows: IntArray = np.zeros((len(kept), every.shape[1]), np.int64)
    rows[:, used] = kept
    return rows.reshape(-1, *counts.shape[1:])
