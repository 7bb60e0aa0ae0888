"""The lifetimes of bytes along a worker's order: from when to when each is held.

Lifetimes depend on the orders alone, not on when things happen.

An activation counts from the *start* of its forward to the *end* of its backward, so that both hold together at the
moment of the highest use. A recomputed one counts from the start of its R. Between I and W the held part stays. A
recomputed stage keeps its inputs from the start of F to the end of the backward. It keeps for as long the buffers that
it writes and reads, as that forward saw them.

Messages count as the runtime holds them. A receive has its buffer LOOKAHEAD actions before it is needed. What was sent
stays until the sender knows that it has arrived. The sender of an activation knows at the latest when its gradient
comes back. The sender of a gradient knows when the next activation comes that the stage before sent after it had read
the gradient. What nobody has confirmed when a step ends is held until the next step has begun. A stage that no
gradient comes back to hears of none of its activations. Each is held until that of the same micro-batch is sent in the
next step.

Between stages of one worker nothing is sent: a tensor is handed over as it is. There is no buffer for it, and it is
held once where both stages keep it. A gradient stays from the backward that made it to the end of the backward that
takes it. Which Values are handed over follows from where a stage begins and ends alone. They are those that its
neighbour made or reads for certain, and all where every stage before (or after) is on the same worker. Others count as
if they were sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.schedule import Action, Kind, Schedule

BACKWARDS = (Kind.B, Kind.I, Kind.W)
LOOKAHEAD = 4  # actions between posting a receive and needing it; measured: more gains nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """The bytes that one micro-batch takes on one stage, by purpose.

    Of what goes from stage to stage, the part that a neighbour is sure to make or read stands apart. `crossing` alone
    is counted in others as well, which it stands for.
    """

    saved: int  # from the forward to the backward, the stage's inputs included but for what is shared
    held: int = 0  # from the input half of the backward to the weight half
    kept: int = 0  # from the forward on where the stage recomputes: its inputs, and copies of buffers
    shared: int = 0  # inputs, as long as `saved`: made by the stage before, which keeps them as well
    workspace: int = 0  # on top while any of its actions runs
    reversing: int = 0  # on top of that while a backward runs, or a half of one
    splitting: int = 0  # on top of that while an input half runs
    weighing: int = 0  # on top of that while a weight half runs
    arriving: int = 0  # Values from other stages: ahead of the forward, and as gradients on their way back
    near: int = 0  # Values from the stage before, as `arriving`, and not counted there
    crossing: int = (
        0  # gradients on their way back of all Values from earlier stages that this or a later one reads
    )
    sent: int = 0  # Values for other stages, where no backward of this stage keeps them anyway
    handed: int = 0  # as `sent`, not counted there: differentiable, and read by the next stage at least
    returning: int = 0  # gradients from other stages: ahead of the backward and during it
    back: int = 0  # gradients from the next stage, as `returning`, and not counted there
    far: int = 0  # gradients for stages that need not be the one before: longer on their way
    unanswered: int = 0  # Values for other stages, all of them, where no gradient comes back
    update: int = 0  # on top while its parameters are updated


PART_NAMES = tuple(field.name for field in fields(StageBytes))
PARTS = len(PART_NAMES)
(
    _SAVED,
    _HELD,
    _KEPT,
    _SHARED,
    _WORK,
    _REVERSING,
    _SPLITTING,
    _WEIGHING,
    _ARRIVING,
    _NEAR,
    _CROSSING,
    _SENT,
    _HANDED,
    _RETURNING,
    _BACK,
    _FAR,
    _UNANSWERED,
    _UPDATE,
) = range(PARTS)


class Spans(NamedTuple):
    """The lifetimes on one worker. Moment 2p is while its action p runs, and 2p + 1 right after that action."""

    start: IntArray
    end: IntArray  # first moment without it
    stage: IntArray
    part: IntArray
    moments: int


_Span = tuple[int, int, int, int]  # start, end, stage, part


def lifetimes(schedule: Schedule) -> tuple[Spans, ...]:
    """Lists the lifetimes of every worker. The same bytes may be in several spans, never in two at one moment.

    Returns: one Spans a worker, its rows by stage and part of StageBytes.
    """
    here, back = _Here.of(schedule), _Returns(schedule)
    found = []
    for order in schedule.orders:
        rows = [row for row in (*_computed(order, here), *back.spans(order, here)) if row[0] < row[1]]
        table = np.array(rows, np.int64).reshape(-1, 4).T
        found.append(Spans(table[0], table[1], table[2], table[3], 2 * len(order)))
    return tuple(found)


def _alike(workers: Sequence[int | None]) -> int:
    """Returns how many entries, from the first on, are equal to the first."""
    return next((k for k, worker in enumerate(workers) if worker != workers[0]), len(workers))


_Node = tuple[int, int]  # pipe, stage


@dataclass(frozen=True)
class _Here:
    """The neighbours on the same worker: sets of (pipe, stage) for which a stage around is held by the same worker."""

    before: frozenset[_Node]  # the stage before
    sharing: frozenset[_Node]  # which keeps what its forward has made
    all_before: frozenset[_Node]
    after: frozenset[_Node]
    all_after: frozenset[_Node]
    last: int  # stage of a pipe

    @staticmethod
    def of(schedule: Schedule) -> _Here:
        """Reads the neighbours from the orders, which in a plan that is wrong may differ from its table of places."""
        nodes = {
            (action.pipe, action.stage): worker
            for worker, order in enumerate(schedule.orders)
            for action in order
            if action.kind is Kind.F
        }
        again = {(a.pipe, a.stage) for order in schedule.orders for a in order if a.kind is Kind.R}
        rows = [[nodes.get((pipe, s)) for s in range(schedule.stages)] for pipe in range(schedule.pipes)]
        before = {(pipe, s) for pipe, s in nodes if s > 0 and rows[pipe][s - 1] == rows[pipe][s]}
        first = [_alike(row) for row in rows]
        last = [schedule.stages - _alike(row[::-1]) for row in rows]
        return _Here(
            before=frozenset(before),
            sharing=frozenset((pipe, s) for pipe, s in before if (pipe, s - 1) not in again),
            all_before=frozenset((pipe, s) for pipe, s in nodes if s < first[pipe]),
            after=frozenset((pipe, s - 1) for pipe, s in before),
            all_after=frozenset((pipe, s) for pipe, s in nodes if s >= last[pipe]),
            last=schedule.stages - 1,
        )


def _computed(order: Sequence[Action], here: _Here) -> Iterator[_Span]:
    """Yields all lifetimes of a worker but those of the gradients that are on their way back."""
    at = {action: position for position, action in enumerate(order)}
    for action, position in at.items():
        now, stage = 2 * position, action.stage
        if action.kind is Kind.STEP:
            yield now, now + 1, stage, _UPDATE
        elif action.kind is not Kind.SYNC:
            yield now, now + 1, stage, _WORK
        if action.kind in BACKWARDS:
            yield now, now + 1, stage, _REVERSING
        match action.kind:
            case Kind.F:
                yield from _life(action, now, at, here)
            case Kind.I:
                yield now, now + 1, stage, _SPLITTING
            case Kind.W:
                yield now, now + 1, stage, _WEIGHING


def _life(forward: Action, born: int, at: dict[Action, int], here: _Here) -> Iterator[_Span]:
    whole, half, weight, again = (forward._replace(kind=k) for k in (Kind.B, Kind.I, Kind.W, Kind.R))
    node, stage = (forward.pipe, forward.stage), forward.stage
    back = 2 * at[whole] if whole in at else 2 * at[half]
    if node not in here.all_before:
        yield max(0, born - 2 * LOOKAHEAD), born, stage, _ARRIVING
        if node not in here.before:
            yield max(0, born - 2 * LOOKAHEAD), born, stage, _NEAR
    yield from _outgoing(forward, born, back, at, here)
    if node not in here.sharing:
        yield born, back + 1, stage, _SHARED
    if again in at:
        yield born, 2 * at[again], stage, _KEPT
        born = 2 * at[again]
    yield born, back + 1, stage, _SAVED
    if half in at:
        yield back + 1, 2 * at[weight] + 1, stage, _HELD


def _outgoing(forward: Action, born: int, back: int, at: dict[Action, int], here: _Here) -> Iterator[_Span]:
    """Yields the lifetimes of what a forward makes for other stages.

    A Value that is handed over belongs to its reader from the start of that forward on. So does its gradient until the
    end of this stage's backward.
    """
    stage, node = forward.stage, (forward.pipe, forward.stage)
    ahead = max(0, back - 2 * LOOKAHEAD), back + 1, stage
    if node in here.after:
        yield born, 2 * at[forward._replace(stage=stage + 1)], stage, _HANDED
    else:
        yield born, back, stage, _HANDED
        yield *ahead, _BACK
    if node in here.all_after:
        yield born, 2 * at[forward._replace(stage=here.last)], stage, _SENT
    else:
        yield born, back, stage, _SENT
        yield *ahead, _RETURNING
    last = forward._replace(stage=here.last)
    if last in at:  # what all activations lead to
        yield born, 2 * at[last], stage, _UNANSWERED
    else:
        yield 0, 2 * len(at), stage, _UNANSWERED
        yield born, born + 1, stage, _UNANSWERED


class _Returns:
    """The moments at which a stage learns that a gradient it has sent was taken: with a forward of its own.

    Forwards are counted over the stage's pipe.
    """

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
        """Returns, for each micro-batch, which of a stage's forwards is the first after its backward."""
        forwards, micros = self._forwards[node], self._backwards[node]
        order = np.searchsorted(forwards, list(micros.values()))
        return dict(zip(micros, order.tolist(), strict=True))

    def _slowest(self) -> dict[tuple[int, int], dict[int, int]]:
        """Returns the latest such forward, by micro-batch, over the stage and all stages before."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for node in sorted(self._near):
            before = found.get((node[0], node[1] - 1), {})
            found[node] = {micro: max(k, before.get(micro, 0)) for micro, k in self._near[node].items()}
        return found

    def spans(self, order: Sequence[Action], here: _Here) -> Iterator[_Span]:
        """Yields the lifetimes of the gradients that a worker sends.

        Args: `order` is the worker's and `here` says which neighbours it holds itself.
        """
        end = 2 * len(order)
        for position, (kind, stage, micro, pipe) in enumerate(order):
            if kind in (Kind.B, Kind.I) and stage > 0:
                before, node = (pipe, stage - 1), (pipe, stage)
                if node in here.before:
                    part = _CROSSING if node in here.all_before else _NEAR
                    yield 2 * position + 1, 2 * self._backwards[before][micro] + 1, stage, part
                    if part == _CROSSING:
                        continue
                near = self._when(pipe, stage, self._near[before].get(micro, 0), end)
                far = self._when(pipe, stage, self._far[before].get(micro, 0), end)
                sent = 2 * position + 1
                for part in (_ARRIVING,) if node in here.before else (_ARRIVING, _NEAR):
                    yield from self._until(sent, max(sent, near), pipe, stage, part, end)
                yield from self._until(max(sent, near), max(sent, far), pipe, stage, _FAR, end)

    def _when(self, pipe: int, stage: int, forward: int, end: int) -> int:
        positions = self._forwards[pipe, stage]
        return 2 * positions[forward] if forward < len(positions) else end

    def _until(self, start: int, stop: int, pipe: int, stage: int, part: int, end: int) -> Iterator[_Span]:
        """Yields a lifetime; bytes that are held at the end of a step live on until the stage's next forward.

        Before the first action of all, receives are posted while those bytes live.
        """
        if start < stop:
            yield start, stop, stage, part
        if start < stop == end:
            yield 0, max(1, 2 * self._forwards[pipe, stage][0]), stage, part
