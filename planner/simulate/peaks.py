"""The bytes that are held along a worker's order: lifetimes times the bytes of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from planner.arrays import IntArray
from planner.schedule import Action, Schedule
from planner.simulate.lifetimes import PARTS, Spans, StageBytes, lifetimes

# gradients whose squares are added up at a time, for the norm of a step, and bytes that one of them takes meanwhile
SQUARED_ELEMENTS, SQUARE_BYTES = 2**20, 8
_TELLING = (
    4  # counts of a row that are looked at first, those furthest above the usual: few rows have as many
)
_PARTS_OF = attrgetter(*(part.name for part in fields(StageBytes)))


def live_counts(own: Spans, stages: int) -> IntArray:
    """Counts the micro-batches alive while each action of a worker runs.

    The product of one row with the bytes of stages, summed, is what is in use: one linear memory constraint a moment.

    Returns: [position, stage, part] counts, parts as in StageBytes.
    """
    return _spread_out(*_alive(own), stages)


def part_rows(spans: Sequence[Spans]) -> tuple[IntArray, ...]:
    """Finds the moments that can be a worker's peak where all stages take as much; far fewer than `memory_rows`.

    Args: `spans` are those of each worker.
    Returns: one [row, part] array a worker of counts over its stages together.
    """
    found: list[IntArray] = []
    for own in spans:
        counts = _change(own, own.part, PARTS).cumsum(0)[:-1:2]
        found.append(undominated(counts))
    return tuple(found)


def _change(own: Spans, column: IntArray, columns: int) -> IntArray:
    change: IntArray = np.zeros((own.moments + 1, columns), np.int64)
    np.add.at(change, (own.start, column), 1)
    np.add.at(change, (own.end, column), -1)
    return change


def _alive(own: Spans) -> tuple[IntArray, IntArray]:
    """Returns which of stages times parts are ever alive on a worker, and how many of each, [position, of those]."""
    used, column = np.unique(own.stage * PARTS + own.part, return_inverse=True)
    return used, _change(own, column.reshape(-1), len(used)).cumsum(0)[:-1:2]


def _spread_out(used: IntArray, counts: IntArray, stages: int) -> IntArray:
    rows: IntArray = np.zeros((len(counts), stages * PARTS), np.int64)
    rows[:, used] = counts
    return rows.reshape(-1, stages, PARTS)


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


def memory_rows(spans: Sequence[Spans], stages: int) -> tuple[IntArray, ...]:
    """Finds the moments of every worker that can be its peak for some sizes.

    For any bytes, `peak = max over rows of counts * bytes`.

    Args: `spans` are those of each worker.
    Returns: one [row, stage, part] array a worker, whose rows are distinct and none covered by another.
    """
    alive = map(_alive, spans)
    return tuple(_spread_out(used, undominated(counts), stages) for used, counts in alive)


def undominated(counts: IntArray) -> IntArray:
    """Drops repeated rows of counts, and rows that another row covers.

    Args: `counts` is [row, ...], none below 0; what follows the first axis is compared as a whole.
    Returns: the rows by falling sums, and equal sums by falling counts.
    """
    every = counts.reshape(len(counts), -1)
    used = every.any(0)
    flat = _distinct(every[:, used])
    flat = flat[flat.sum(1).argsort(kind="stable")[::-1]]
    telling = np.argsort(flat.mean(0) - flat, axis=1)[:, :_TELLING] if flat.size else flat[:, :0]
    columns: IntArray = np.zeros(flat.shape[::-1], np.int64)  # of the rows that are kept
    kept: list[int] = []
    for number, row in enumerate(flat):  # a moment is covered only by one of a larger sum
        over: IntArray = np.arange(len(kept))
        for column in telling[number]:
            over = over[columns[column, over] >= row[column]]
        if not len(over) or not (columns[:, over] >= row[:, None]).all(0).any():
            columns[:, len(kept)] = row
            kept.append(number)
    rows: IntArray = np.zeros((len(kept), every.shape[1]), np.int64)
    rows[:, used] = flat[kept]
    return rows.reshape(-1, *counts.shape[1:])


def _distinct(rows: IntArray) -> IntArray:
    """Returns distinct rows in rising order; some that the row after them covers are left out."""
    if not rows.size:
        return rows[:1]
    rows = rows[np.append((rows[1:] < rows[:-1]).any(1), True)]
    kind = (
        np.dtype(">u2") if rows.max() < 2**16 else np.dtype(">u8")
    )  # whose bytes are ordered as the numbers
    texts = np.ascontiguousarray(rows.astype(kind)).view((np.void, kind.itemsize * rows.shape[1]))
    found: IntArray = rows[np.unique(texts.ravel(), return_index=True)[1]]
    return found
