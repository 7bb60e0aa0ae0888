"""A frozen schedule, what follows from it alone, and paths through it; and the meter that counts the work done on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner import limits
from planner.arrays import BoolArray, FloatArray, IntArray
from planner.configurations import Update
from planner.plan import Hop
from planner.schedule import Kind, Schedule
from planner.simulate import Compiled, Spans, compile, lifetimes, memory_rows, part_rows

_NEAR = 1 / 8  # of the stages: a message so far that one cut has, another will have from the next stage on


@dataclass(kw_only=True)
class WorkMeter:
    """Work done, in nanoseconds of a usual core as far as counts can tell: unlike a clock, the same every time."""

    spent_ns: float = 0.0

    def simulated(self, cuts: int, actions: int) -> None:
        self.spent_ns += 40.0 * cuts * actions

    def compiled(self, actions: int) -> None:
        self.spent_ns += 10_000.0 * actions

    def solved(self, cells: int) -> None:
        """Counts a small linear program.

        Args: `cells` of its matrix.
        """
        self.spent_ns += 2_000_000.0 + 500.0 * cells

    def programmed(self, iterations: int, rows: int, cells: int) -> None:
        """Counts a run of the mixed-integer program: writing it, and the iterations of its linear programs."""
        self.spent_ns += 10_000.0 * cells + 160.0 * iterations * rows

    def priced(self, cells: int) -> None:
        self.spent_ns += 100_000.0 + 6.0 * cells


@dataclass(frozen=True, eq=False)
class Moments:
    """How many micro-batches are alive at moments of one worker, without the stages that it does not have."""

    counts: IntArray  # [moment, one of `used`]
    used: IntArray  # of [stage, part] laid flat, rising; nothing else is ever alive
    shape: tuple[int, int]  # of stages and parts

    @classmethod
    def of(cls, rows: IntArray) -> Moments:
        """Returns the same moments, stored without what is never alive.

        Args: `rows` is [moment, stage, part].
        """
        _, stages, parts = rows.shape
        flat = rows.reshape(len(rows), stages * parts)
        used = np.flatnonzero(flat.any(0))
        return cls(flat[:, used], used, (stages, parts))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> IntArray:
        """Returns [moment, stage, part] of all stages."""
        out: IntArray = np.zeros((len(self), self.shape[0] * self.shape[1]), np.int64)
        out[:, self.used] = self.counts
        return out.reshape(len(self), *self.shape)

    def stage(self, number: int) -> IntArray:
        """Returns [moment, part] of one stage."""
        parts = self.shape[1]
        own = self.used // parts == number
        out: IntArray = np.zeros((len(self), parts), np.int64)
        out[:, self.used[own] % parts] = self.counts[:, own]
        return out

    def bytes_of(self, sizes: IntArray) -> IntArray:
        """Returns the bytes that are alive at each moment.

        Args: `sizes` is [stage, part], of one micro-batch.
        """
        out: IntArray = self.counts @ sizes.ravel()[self.used]
        return out


@dataclass(frozen=True, eq=False)
class Order:
    """A frozen schedule with what follows from it alone, worked out once for every shape that has it."""

    schedule: Schedule
    _compiled: dict[tuple[bytes, Update], Compiled] = field(default_factory=dict)
    _known: dict[Update, BoolArray] = field(default_factory=dict)

    @cached_property
    def moments(self) -> tuple[Moments, ...]:
        """Returns what is alive at the moments that can be a worker's peak, for each worker."""
        return tuple(map(Moments.of, memory_rows(self._spans, self.schedule.stages)))

    @cached_property
    def part_moments(self) -> tuple[IntArray, ...]:
        """Returns the same of a worker's stages together: for each worker [moment, part]."""
        return part_rows(self._spans)

    @cached_property
    def _spans(self) -> tuple[Spans, ...]:
        return lifetimes(self.schedule)

    @cached_property
    def owes(self) -> bool:
        """Returns whether any stage has weight gradients to do later."""
        return any(a.kind is Kind.I for order in self.schedule.orders for a in order)

    @cached_property
    def recomputing(self) -> frozenset[int]:
        """Returns the stages that recompute."""
        return frozenset(a.stage for order in self.schedule.orders for a in order if a.kind is Kind.R)

    @cached_property
    def actions(self) -> int:
        return sum(map(len, self.schedule.orders))

    @property
    def slow(self) -> bool:
        """Returns whether the order takes long to compile, so that it is compiled as seldom as can be."""
        return self.actions > limits.SLOW_ACTIONS

    @cached_property
    def single(self) -> bool:
        """Returns whether every worker holds one stage of a pipe at most; then no two hops share a channel."""
        return all(len(set(row)) == len(row) for row in self.schedule.place)

    def covering(self, pattern: BoolArray, update: Update) -> BoolArray:
        """Returns a pattern of messages, met before or enlarged now, that holds this one.

        Args: `pattern` is [act or grad, sender, receiver] laid flat.
        """
        known = self._known.get(update)
        if known is None or (pattern & ~known).any():
            wide = _widened(pattern, self.schedule.stages)
            self._known[update] = wide if known is None else known | wide
        return self._known[update]

    def compiled(self, pattern: BoolArray, update: Update, meter: WorkMeter) -> Compiled:
        """Returns the order compiled with the messages of a pattern.

        Args: `pattern` is [act or grad, sender, receiver] laid flat; the work is counted on `meter`.
        """
        key = (np.packbits(pattern).tobytes(), update)
        if key not in self._compiled:
            meter.compiled(self.actions)
            if self.actions > limits.LONG_ACTIONS:
                self._compiled.clear()  # each takes megabytes, and the latest pattern holds those before it
            self._compiled[key] = compile(self.schedule, self._routes(pattern), update=update)
        return self._compiled[key]

    def _routes(self, pattern: BoolArray) -> list[Hop]:
        depth = self.schedule.stages
        return [
            Hop(direction="grad" if way else "act", sender=a, receiver=b, values=(), bytes=0, ns=0)
            for way, a, b in np.argwhere(pattern.reshape(2, depth, depth)).tolist()
        ]


@dataclass(frozen=True, kw_only=True)
class CutRow:
    """`steps * T >= counts * durations` for every cut whose messages include those counted here.

    A path takes few of the messages that there can be, and a search keeps thousands of paths: only those are stored.
    """

    kinds: IntArray  # [kind, stage]
    cells: IntArray  # the messages that are counted, of [act or grad, sender, receiver] laid flat; rising
    counts: IntArray  # of each of them
    steps: int = 1

    @property
    def hops(self) -> IntArray:
        """Returns the counts of all messages, [act or grad, sender, receiver]."""
        stages = self.kinds.shape[1]
        out: IntArray = np.zeros(2 * stages**2, np.int64)
        out[self.cells] = self.counts
        return out.reshape(2, stages, stages)


def counted(moments: Sequence[Moments], hosted: IntArray) -> list[FloatArray]:
    """Returns for each worker [part of a stage, moment]: what is alive, of the stages that the worker hosts."""
    own = [np.flatnonzero(row) for row in hosted]
    return [
        each.rows[:, at].reshape(len(each), -1).T.astype(np.float64, order="F")
        for each, at in zip(moments, own, strict=True)
    ]


def peaks(counts: list[FloatArray], hosted: IntArray, moving: IntArray) -> IntArray:
    """Returns the bytes of activations, [cut, worker].

    Doubles hold bytes exactly, and are multiplied far faster than integers.

    Args: `counts` are those of `counted`, `moving` is [cut, stage, part] bytes.
    """
    out: IntArray = np.zeros((len(moving), len(counts)), np.int64)
    for worker, alive in enumerate(counts):
        parts = moving[:, np.flatnonzero(hosted[worker])].reshape(len(moving), -1).astype(np.float64)
        out[:, worker] = (parts @ alive).max(1)
    return out


def _widened(pattern: BoolArray, stages: int) -> BoolArray:
    """Adds every message that goes as far as one of a few stages: compiling takes longer than sending for nothing."""
    grid = pattern.reshape(2, stages, stages).copy()
    far = np.arange(stages)[None, :] - np.arange(stages)[:, None]
    for way in grid:
        met = np.unique(far[way])
        way |= np.isin(far, met[abs(met) <= _NEAR * stages])
    return grid.ravel()
