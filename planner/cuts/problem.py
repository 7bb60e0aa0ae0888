"""One shape with its order frozen, as a function of the cut: time by the simulator, memory by the order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from planner import limits
from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cuts.frozen_order import CutRow
from planner.cuts.stage_costs import COMPUTE, KINDS, Durations, StageCosts
from planner.simulate import Bound, Compiled, critical_counts, critical_path, makespans, period


@dataclass(frozen=True, kw_only=True)
class CutProblem(StageCosts):
    """The cuts of one configuration. Rows are about the cuts asked for, times are those of any cut.

    Where all neighbours talk (`silent` 0), a row may have a stage wait for its neighbour, whatever they send.
    """

    def times(self, cuts: IntArray, most: int | None = None) -> IntArray:
        """Simulates each cut.

        Args: `cuts` [cut, boundary], which need not be among the cuts asked for.
        Returns: nanoseconds of each cut; of a cut that takes more than `most`, something between.
        """
        out: IntArray = np.zeros(len(cuts), np.int64)
        told = self.talks(cuts)
        for view, own in ((self.talking, told), (self.any, ~told)):
            if own.any():
                out[own] = view.simulated(cuts[own], most)
        return out

    def talks(self, cuts: IntArray) -> BoolArray:
        """Returns [cut]: whether all neighbours on different workers talk.

        Args: `cuts` [cut, boundary].
        """
        return self.tables.talk.everywhere(self.bounds(cuts), self.apart)

    @cached_property
    def talking(self) -> Self:
        """Returns the problem of the cuts in which all neighbours talk."""
        return self if self.chained else replace(self, silent=0)

    def exact_ns(self, cut: IntArray, ns: int) -> int:
        """Returns the time of a cut of which `critical_of` says `ns`: where neighbours do not talk, it may be less."""
        exact = self.silent != 0 or bool(self.talks(cut[None, :])[0])
        return ns if exact else int(self.times(cut[None, :])[0])

    @property
    def roomless(self) -> bool:
        """Returns whether the time of a cut is the same however much memory devices have."""
        return self.least is None and self.fixed is None and not self.flagged

    @cached_property
    def any(self) -> Self:
        """Returns the problem of all cuts."""
        return self if self.silent is None else replace(self, silent=None)

    def silent_at(self, boundary: int) -> Self:
        """Returns the problem of the cuts in which this boundary is the first whose stages do not talk."""
        return replace(self, silent=boundary)

    @cached_property
    def quiet(self) -> tuple[IntArray, IntArray]:
        """Returns the least begin and the largest end of the stages beside the silent boundary, by its layer.

        Returns: [layer] twice; the begin is no less than the layer where the boundary cannot be.
        """
        assert self.silent
        return self.tables.talk.beside(self.silent == 1, self.silent == self.stages - 1)

    def joined(self, stage: int, begins: IntArray, ends: IntArray) -> BoolArray | None:
        """Returns [begin, end]: which stages the cuts asked for may have; None where that is not limited.

        Args: `stage` is its number, `begins` and `ends` are layers.
        """
        if not self.silent or self.chained or stage not in (self.silent - 1, self.silent):
            return None
        least, most = self.quiet
        if stage == self.silent:
            inside = np.minimum(begins, self.layers - 1)
            told: BoolArray = (ends[None, :] <= most[inside][:, None]) & (least[inside] < begins)[:, None]
            return told
        inside = np.minimum(ends, self.layers - 1)
        told = (begins[:, None] >= least[inside][None, :]) & (least[inside] < ends)[None, :]
        return told

    def roomy(self, cuts: IntArray) -> BoolArray:
        """Returns [cut]: whether every worker has room even if the worst moments of all parts of its stages met.

        Args: `cuts` [cut, boundary].
        """
        if self.flagged or self.least is not None:
            return np.zeros(len(cuts), np.bool_)
        low, high = cuts[:, :-1], cuts[:, 1:]
        most = self.fixed_bytes(low, high) @ self.hosted.T
        most = most + np.tensordot(self.moving_bytes(low, high), self._most_counts, ((1, 2), (1, 2)))
        return np.asarray((most <= self.available_bytes).all(1))

    @cached_property
    def _most_counts(self) -> IntArray:
        """Returns [worker, stage, part]: how many micro-batches of a stage have it at once."""
        return np.array([each.rows.max(0) for each in self.moments])

    def simulated(self, cuts: IntArray, most: int | None) -> IntArray:
        """Returns `times` of cuts that are among those asked for."""
        spans = self.durations(cuts)
        out: IntArray = np.zeros(len(spans.kinds), np.int64)
        if self.implied:
            pattern = self.order.covering(self._pattern(spans.cells), self.shape.update)
            return self._objective(self._compile(pattern), self._vectors(spans, np.arange(len(out)), pattern))
        present, left = spans.hop_bytes > 0, np.arange(len(out))
        if most is not None and self.chained and len(left) > limits.FEW_CUTS:
            near = self._neighbours
            out[:] = self._objective(self._compile(near), self._vectors(spans, left, near))
            left = np.flatnonzero(out <= most)
        while len(left):
            here = present[left[0]]
            same = (present[left] == here).all(1)
            pattern = self._pattern(spans.cells[here])
            vectors = self._vectors(spans, left[same], pattern)
            out[left[same]] = self._objective(self._compile(pattern), vectors)
            left = left[~same]
        return out

    def _pattern(self, cells: IntArray) -> BoolArray:
        pattern: BoolArray = np.zeros(2 * self.stages**2, np.bool_)
        pattern[cells] = True
        return pattern

    @property
    def implied(self) -> bool:
        """Returns whether a message that a cut lacks may stand in the order all the same, taking no time.

        Neighbours talk anyway, so that its receiver waits for its sender without it, and it has its channel to itself.
        """
        return self.chained and self.order.single

    def _objective(self, compiled: Compiled, vectors: IntArray) -> IntArray:
        self.meter.simulated(len(vectors), self.order.actions)
        if self.shape.update == "rolling":
            return np.array([period(compiled, row).period_ns for row in vectors], np.int64)
        return makespans(compiled, vectors)

    def critical(self, cut: IntArray) -> tuple[CutRow, int]:
        """Returns a path (or cycle) that determines the time of a cut.

        Returns: the row of the path, and the nanoseconds of the cut.
        """
        return self.critical_of(self.durations(cut))

    def critical_of(self, spans: Durations) -> tuple[CutRow, int]:
        """Returns a path that determines the time of a cut whose durations are known.

        Returns: the row of the path, and the nanoseconds of the cut.
        """
        return self._critical(spans)

    def critical_between(self, cuts: IntArray, shares: FloatArray) -> CutRow:
        """Returns the path that determines the time at a mixture of cuts.

        Args: `cuts` [cut, boundary] and their `shares`, which add up to 1.
        Returns: a row that holds like any other.
        """
        spans = self.durations(cuts)
        mixed = Durations(
            kinds=np.tensordot(shares, spans.kinds, 1)[None].round().astype(np.int64),
            cells=spans.cells,
            hop_bytes=np.ceil(shares @ spans.hop_bytes)[None].astype(np.int64),
            hop_ns=(shares @ spans.hop_ns)[None].round().astype(np.int64),
        )
        return self._critical(mixed, rough=self.patterned)[0]

    def critical_along(self, table: FloatArray, pattern: BoolArray) -> tuple[list[CutRow], int]:
        """Returns a path that determines the time for each of several durations, and the nanoseconds of the first.

        Args: `table` is [point, duration]: of every kind and stage, then of messages by the boundary that they cross;
            `pattern` [act or grad, sender, receiver] has the messages between neighbours that there are.
        """
        early, kinds = np.arange(self.stages - 1), table[:, : len(KINDS) * self.stages]
        hops = np.zeros((len(table), *pattern.shape))
        hops[:, 0, early, early + 1], hops[:, 1, early + 1, early] = np.split(
            table[:, kinds.shape[1] :], 2, axis=1
        )
        flat, own = hops.reshape(len(table), -1), pattern.ravel()
        vectors: IntArray = np.concatenate([kinds, flat[:, own]], 1).round().astype(np.int64)
        compiled = self._compile(own)
        self.meter.simulated(len(vectors), 5 * self.order.actions)
        if self.shape.update == "rolling":
            every = [period(compiled, vector) for vector in vectors]
            return [self._row(each.counts, own, each.steps) for each in every], every[0].period_ns
        counts = list(critical_counts(compiled, vectors))
        return [self._row(each, own) for each in counts], int(counts[0] @ vectors[0])

    @property
    def patterned(self) -> bool:
        """Returns whether the order is compiled anew for whatever messages a cut has.

        That takes longer than anything else. Messages between neighbours tell nearly as much, and are the same for all cuts.
        """
        return self.chained and (self.order.slow or not self.implied)

    def rough(self, spans: Durations) -> tuple[CutRow, int]:
        """Returns a path as if only neighbours talked; its order is compiled once.

        Returns: the row of the path, and its nanoseconds, which are no more than those of the cut.
        """
        assert self.chained
        return self._critical(spans, rough=True)

    def loads(self) -> list[CutRow]:
        """Returns the rows of what each worker computes: they hold for every cut."""
        compute, found = [KINDS.index(kind) for kind in COMPUTE], []
        for order in self.schedule.orders:
            kinds: IntArray = np.zeros((len(KINDS), self.stages), np.int64)
            for action in order:
                kinds[KINDS.index(action.kind), action.stage] += 1
            own = np.zeros_like(kinds)
            own[compute] = kinds[compute]
            nothing: IntArray = np.zeros(0, np.int64)
            found.append(CutRow(kinds=own, cells=nothing, counts=nothing))
        return found

    @cached_property
    def _neighbours(self) -> BoolArray:
        pattern: BoolArray = np.zeros((2, self.stages, self.stages), np.bool_)
        early = np.arange(self.stages - 1)
        pattern[0, early, early + 1] = pattern[1, early + 1, early] = True
        return pattern.ravel()

    def _critical(self, spans: Durations, *, rough: bool = False) -> tuple[CutRow, int]:
        pattern = self._neighbours if rough else self._pattern(spans.cells)
        if self.implied and not rough:
            pattern = self.order.covering(pattern, self.shape.update)
        compiled = self._compile(pattern)
        self.meter.simulated(1, 5 * self.order.actions)
        vector = self._vectors(spans, np.zeros(1, np.int64), pattern)[0]
        rolling = self.shape.update == "rolling"
        bound: Bound = period(compiled, vector) if rolling else critical_path(compiled, vector)
        return self._row(bound.counts, pattern, bound.steps), bound.period_ns

    def _row(self, counts: IntArray, pattern: BoolArray, steps: int = 1) -> CutRow:
        split = len(KINDS) * self.stages
        own = np.flatnonzero(counts[split:])
        return CutRow(
            kinds=counts[:split].reshape(len(KINDS), self.stages).copy(),  # a view would keep all of `counts`
            cells=np.flatnonzero(pattern)[own],
            counts=counts[split:][own],
            steps=steps,
        )

    def slowed(self, cut: IntArray, factor: float) -> list[CutRow]:
        """Returns the paths that determine the time when one worker after the other is slower.

        Args: `factor` multiplies the durations of the slower worker.
        """
        spans = self.durations(cut)
        pattern = self._neighbours if self.patterned else self._pattern(spans.cells)
        if self.implied and not self.patterned:
            pattern = self.order.covering(pattern, self.shape.update)
        compiled = self._compile(pattern)
        vector = self._vectors(spans, np.zeros(1, np.int64), pattern)[0]
        table = np.repeat(vector[None], self.schedule.workers, 0)
        own = np.zeros((self.schedule.workers, len(KINDS), self.stages), np.bool_)
        own[:, : len(COMPUTE)] = self.hosted[:, None] > 0
        slow = table[:, : own[0].size]
        slow[own.reshape(slow.shape)] = (slow[own.reshape(slow.shape)] * factor).astype(np.int64)
        self.meter.simulated(len(table), 2 * self.order.actions)
        found: dict[bytes, CutRow] = {}
        for counts in critical_counts(compiled, table):
            found.setdefault(counts.tobytes(), self._row(counts, pattern))
        return list(found.values())

    def _vectors(self, spans: Durations, chosen: IntArray, pattern: BoolArray) -> IntArray:
        """Returns duration vectors of some cuts; messages of the pattern that a cut lacks take no time."""
        columns = np.flatnonzero(pattern)
        kinds = spans.kinds[chosen].reshape(len(chosen), -1)
        hops: IntArray = np.zeros((len(chosen), len(columns)), np.int64)
        own = np.isin(spans.cells, columns)
        hops[:, np.searchsorted(columns, spans.cells[own])] = spans.hop_ns[
            np.ix_(chosen, np.flatnonzero(own))
        ]
        return np.concatenate([kinds, hops], 1)

    def _compile(self, pattern: BoolArray) -> Compiled:
        return self.order.compiled(pattern, self.shape.update, self.meter)
