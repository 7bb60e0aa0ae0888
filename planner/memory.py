"""Bytes that move along a worker's order: they depend on the orders alone, not on when things happen.

An activation counts from the *start* of its forward (or, recomputed, of its R) to the *end* of its backward, so that
both hold together at the moment of the highest use. Between I and W the held part stays. A recomputed stage keeps
its inputs from the start of F to the end of the backward.

Messages count as the runtime holds them. A receive has its buffer LOOKAHEAD actions before it is needed. What was
sent stays until the sender knows that it has arrived: an activation at the latest when its gradient comes back, a
gradient when the next activation comes that the stage before sent after it had read the gradient. What nobody has
confirmed when a step ends is held until the next one has begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.graph import IntArray

LOOKAHEAD = 4  # actions between posting a receive and needing it; measured: more gains nothing

# gradients whose squares are added up at a time, for the norm of a step, and bytes that one of them takes meanwhile
SQUARED_ELEMENTS, SQUARE_BYTES = 2**20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """What one micro-batch takes on one stage."""

    saved: int  # from the forward to the backward, the stage's inputs included
    held: int = 0  # of it, from the input half of the backward to the weight half
    kept: int = 0  # of it, from the forward on where the stage recomputes: its inputs
    workspace: int = 0  # on top while any of its actions runs
    splitting: int = 0  # on top of that while an input half runs
    weighing: int = 0  # on top of that while a weight half runs
    arriving: int = 0  # Values from other stages: ahead of the forward, and as gradients on their way back
    sent: int = 0  # Values for other stages, where no backward of this stage keeps them anyway
    returning: int = 0  # gradients from other stages: ahead of the backward and during it
    far: int = 0  # gradients for stages that need not be the one before: longer on their way
    update: int = 0  # on top while its parameters are updated


PART_NAMES = tuple(field.name for field in fields(StageBytes))
PARTS = len(PART_NAMES)
(
    _SAVED,
    _HELD,
    _KEPT,
    _WORK,
    _SPLITTING,
    _WEIGHING,
    _ARRIVING,
    _SENT,
    _RETURNING,
    _FAR,
    _UPDATE,
) = range(PARTS)


class Spans(NamedTuple):
    """What lives from when to when on one worker; moment 2p is while its action p runs, 2p + 1 right after it."""

    start: IntArray
    end: IntArray  # first moment without it
    stage: IntArray
    part: IntArray
    moments: int


_Span = tuple[int, int, int, int]  # start, end, stage, part


def spans(schedule: Schedule) -> tuple[Spans, ...]:
    """Of every worker. The same bytes may be in several spans, never in two at the same moment."""
    back = _Returns(schedule)
    found = []
    for order in schedule.orders:
        rows = [*_computed(order), *back.spans(order)]
        table = np.array(rows, np.int64).reshape(-1, 4).T
        found.append(Spans(table[0], table[1], table[2], table[3], 2 * len(order)))
    return tuple(found)


def _computed(order: Sequence[Action]) -> Iterator[_Span]:
    """All but the gradients that are on their way back."""
    at = {action: position for position, action in enumerate(order)}
    for action, position in at.items():
        now, stage = 2 * position, action.stage
        if action.kind is Kind.STEP:
            yield now, now + 1, stage, _UPDATE
        elif action.kind is not Kind.SYNC:
            yield now, now + 1, stage, _WORK
        match action.kind:
            case Kind.F:
                yield from _life(action, now, at)
            case Kind.I:
                yield now, now + 1, stage, _SPLITTING
            case Kind.W:
                yield now, now + 1, stage, _WEIGHING


def _life(forward: Action, born: int, at: dict[Action, int]) -> Iterator[_Span]:
    whole, half, weight, again = (forward._replace(kind=k) for k in (Kind.B, Kind.I, Kind.W, Kind.R))
    stage, back = forward.stage, 2 * at[whole] if whole in at else 2 * at[half]
    yield max(0, born - 2 * LOOKAHEAD), born, stage, _ARRIVING
    yield born, back, stage, _SENT
    yield max(0, back - 2 * LOOKAHEAD), back + 1, stage, _RETURNING
    if again in at:
        yield born, 2 * at[again], stage, _KEPT
        born = 2 * at[again]
    yield born, back + 1, stage, _SAVED
    if half in at:
        yield back + 1, 2 * at[weight] + 1, stage, _HELD


class _Returns:
    """When a stage learns that a gradient it has sent was taken: with a forward of its own, counted over its pipe."""

    def __init__(self, schedule: Schedule) -> None:
        self._stages = schedule.stages
        self._forwards: dict[tuple[int, int], list[int]] = {}  # positions by (pipe, stage)
        self._backwards: dict[tuple[int, int], dict[int, int]] = {}  # position by micro-batch
        for order in schedule.orders:
            for position, (kind, stage, micro, pipe) in enumerate(order):
                if kind is Kind.F:
                    self._forwards.setdefault((pipe, stage), []).append(position)
                elif kind in (Kind.B, Kind.I):
                    self._backwards.setdefault((pipe, stage), {})[micro] = position
        self._near = {node: self._heard(node) for node in self._backwards}
        self._far = self._slowest()

    def _heard(self, node: tuple[int, int]) -> dict[int, int]:
        """By micro-batch, which of a stage's forwards is the first after its backward."""
        forwards, micros = self._forwards[node], self._backwards[node]
        order = np.searchsorted(forwards, list(micros.values()))
        return dict(zip(micros, order.tolist(), strict=True))

    def _slowest(self) -> dict[tuple[int, int], dict[int, int]]:
        """The same over the stage and all before it."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for node in sorted(self._near):
            before = found.get((node[0], node[1] - 1), {})
            found[node] = {micro: max(k, before.get(micro, 0)) for micro, k in self._near[node].items()}
        return found

    def spans(self, order: Sequence[Action]) -> Iterator[_Span]:
        end = 2 * len(order)
        for position, (kind, stage, micro, pipe) in enumerate(order):
            if kind in (Kind.B, Kind.I) and stage > 0:
                before = pipe, stage - 1
                near = self._when(pipe, stage, self._near[before].get(micro, 0), end)
                far = self._when(pipe, stage, self._far[before].get(micro, 0), end)
                sent = 2 * position + 1
                yield from self._until(sent, max(sent, near), pipe, stage, _ARRIVING, end)
                yield from self._until(max(sent, near), max(sent, far), pipe, stage, _FAR, end)

    def _when(self, pipe: int, stage: int, forward: int, end: int) -> int:
        positions = self._forwards[pipe, stage]
        return 2 * positions[forward] if forward < len(positions) else end

    def _until(self, start: int, stop: int, pipe: int, stage: int, part: int, end: int) -> Iterator[_Span]:
        """What lives to the end of a step lives on until the stage's first forward of the next; before the first
        action of all, receives are posted while it does."""
        if start < stop:
            yield start, stop, stage, part
        if start < stop == end:
            yield 0, max(1, 2 * self._forwards[pipe, stage][0]), stage, part


def live_counts(own: Spans, stages: int) -> IntArray:
    """Micro-batches alive while each action runs: [position, stage, part], parts as in StageBytes; their product
    with a stage's bytes, summed, is what is in use. One row a moment is one linear memory constraint."""
    change: NDArray[np.int64] = np.zeros((own.moments + 1, stages, PARTS), np.int64)
    np.add.at(change, (own.start, own.stage, own.part), 1)
    np.add.at(change, (own.end, own.stage, own.part), -1)
    counts: IntArray = change.cumsum(0)[:-1:2]
    return counts


def weights(memory: Sequence[StageBytes]) -> IntArray:
    """[stage, part]"""
    return np.array([astuple(each) for each in memory], np.int64).reshape(len(memory), PARTS)


def use(own: Spans, table: IntArray) -> IntArray:
    """Bytes in use while each action runs and after it, [position, 2], of the weights [stage, part]."""
    change: IntArray = np.zeros(own.moments + 1, np.int64)
    sizes = table[own.stage, own.part]
    np.add.at(change, own.start, sizes)
    np.add.at(change, own.end, -sizes)
    return change.cumsum()[:-1].reshape(-1, 2)


@dataclass(frozen=True, kw_only=True)
class Peak:
    bytes: int
    position: int  # of the action, in the worker's order, that runs when it is reached first

    def at(self, order: Sequence[Action]) -> Action:
        return order[self.position]


def peaks(schedule: Schedule, memory: Sequence[StageBytes]) -> tuple[Peak, ...]:
    """Of every worker, the most that activations, messages and workspace take, and where."""
    table, found = weights(memory), []
    for own in spans(schedule):
        during = use(own, table)[:, 0]
        position = int(during.argmax()) if len(during) else 0
        found.append(Peak(bytes=int(during[position]) if len(during) else 0, position=position))
    return tuple(found)


def memory_rows(schedule: Schedule) -> tuple[IntArray, ...]:
    """Of every worker, the moments that can be its peak for some sizes: distinct [row, stage, part] counts of which
    none is covered by another, so that `peak = max over rows of counts * bytes` for any bytes."""
    return tuple(_uncovered(live_counts(own, schedule.stages)) for own in spans(schedule))


def _uncovered(counts: IntArray) -> IntArray:
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
