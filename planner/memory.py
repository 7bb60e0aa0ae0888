"""Bytes that activations take along a worker's order: it depends on the order alone, not on when things happen.

An activation counts from the *start* of its forward (or, recomputed, of its R) to the *end* of its backward, so that
both hold together at the moment of the highest use. Between I and W the held part stays. A recomputed stage keeps
its inputs from the start of F to the end of the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.graph import KIND_ROW, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What one micro-batch takes on one stage."""

    saved: int  # from the forward to the backward, the stage's inputs included
    held: int = 0  # of it, from the input half of the backward to the weight half
    kept: int = 0  # of it, from the forward on where the stage recomputes: its inputs
    workspace: int = 0  # on top while any of its actions runs


_SAVED, _HELD, _KEPT, _WORK = range(4)
_PARTS = 4


def live_counts(order: Sequence[Action], stages: int) -> IntArray:
    """Micro-batches alive while each action runs and after it: [position, (during, after), stage, part].

    Parts are saved, held, kept and workspace, as in StageBytes; their product with a stage's bytes, summed, is what
    is in use. One row a moment is one linear memory constraint.
    """
    again = {action[1:] for action in order if action.kind is Kind.R}
    now: IntArray = np.zeros((stages, _PARTS), np.int64)
    counts: IntArray = np.zeros((len(order), 2, stages, _PARTS), np.int64)
    for position, action in enumerate(order):
        before, after = _changes(action, action[1:] in again)
        for part, change in before:
            now[action.stage, part] += change
        counts[position, 0] = now
        if action.kind not in (Kind.SYNC, Kind.STEP):
            counts[position, 0, action.stage, _WORK] = 1
        for part, change in after:
            now[action.stage, part] += change
        counts[position, 1] = now
    return counts


_Changes = tuple[tuple[int, int], ...]


def _changes(action: Action, recomputed: bool) -> tuple[_Changes, _Changes]:
    """What changes when the action starts and when it ends."""
    match action.kind:
        case Kind.F:
            return (((_KEPT if recomputed else _SAVED), 1),), ()
        case Kind.R:
            return ((_KEPT, -1), (_SAVED, 1)), ()
        case Kind.B:
            return (), ((_SAVED, -1),)
        case Kind.I:
            return (), ((_SAVED, -1), (_HELD, 1))
        case Kind.W:
            return (), ((_HELD, -1),)
        case _:
            return (), ()


_AGAIN = len(Kind)  # row of a forward whose stage recomputes


def codes(order: Sequence[Action]) -> tuple[IntArray, IntArray]:
    """Of each action its row in the tables of changes, and its stage; for `use` of the same order with many sizes."""
    again = {action[1:] for action in order if action.kind is Kind.R}
    rows = [
        _AGAIN if action.kind is Kind.F and action[1:] in again else KIND_ROW[action.kind] for action in order
    ]
    return np.array(rows, np.int64), np.array([action.stage for action in order], np.int64)


def changes(memory: Sequence[StageBytes]) -> IntArray:
    """Bytes that an action adds when it starts, adds when it ends, and takes on top meanwhile: [3, row, stage]."""
    saved, held, kept, work = np.array([[m.saved, m.held, m.kept, m.workspace] for m in memory], np.int64).T
    table: IntArray = np.zeros((3, len(Kind) + 1, len(memory)), np.int64)
    table[0, KIND_ROW[Kind.F]], table[0, _AGAIN], table[0, KIND_ROW[Kind.R]] = saved, kept, saved - kept
    table[1, KIND_ROW[Kind.B]], table[1, KIND_ROW[Kind.I]], table[1, KIND_ROW[Kind.W]] = (
        -saved,
        held - saved,
        -held,
    )
    for row in (*(KIND_ROW[kind] for kind in Kind if kind not in (Kind.SYNC, Kind.STEP)), _AGAIN):
        table[2, row] = work
    return table


def use(rows: IntArray, stages: IntArray, table: IntArray) -> IntArray:
    """Bytes in use while each action runs and after it: [position, 2]."""
    start, end, work = table[:, rows, stages]
    after = np.cumsum(start + end)
    return np.stack([after - end + work, after], axis=1)


def occupancy(order: Sequence[Action], memory: Sequence[StageBytes]) -> IntArray:
    """Bytes in use while each action of a worker runs and after it: [position, 2]."""
    return use(*codes(order), changes(memory))


@dataclass(frozen=True, kw_only=True)
class Peak:
    bytes: int
    position: int  # of the action, in the worker's order, that runs when it is reached first

    def at(self, order: Sequence[Action]) -> Action:
        return order[self.position]


def peaks(schedule: Schedule, memory: Sequence[StageBytes]) -> tuple[Peak, ...]:
    """Of every worker, the most that activations and workspace take, and where."""
    table, found = changes(memory), []
    for order in schedule.orders:
        during = use(*codes(order), table)[:, 0]
        position = int(during.argmax()) if len(during) else 0
        found.append(Peak(bytes=int(during[position]) if len(during) else 0, position=position))
    return tuple(found)


def memory_rows(schedule: Schedule) -> tuple[IntArray, ...]:
    """Of every worker, the moments that can be its peak for some sizes: distinct [row, stage, part] counts of which
    none is covered by another, so that `peak = max over rows of counts * bytes` for any bytes."""
    rows = []
    for order in schedule.orders:
        flat = np.unique(live_counts(order, schedule.stages)[:, 0].reshape(len(order), -1), axis=0)
        covered = [
            any(np.all(other >= row) for j, other in enumerate(flat) if j != i) for i, row in enumerate(flat)
        ]
        rows.append(flat[~np.array(covered, bool)].reshape(-1, schedule.stages, _PARTS))
    return tuple(rows)
