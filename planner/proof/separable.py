"""Bounds rows by sums of functions of single boundaries: lower bounds in time linear in the layers.

Where neighbours always talk, a row of path counts is at least `constant + sum over p of h_p(c_p)`:

    compute      differences of prefix sums, exactly
    sum          an all-reduce is concave in its bytes, so it lies above its chord from 0 to all bytes there are; and
                 the bytes of [i, j) are at least those of the parameters whose first user lies there, and those whose
                 last user does, if no stage is long enough to hold both
    update       the same of elements, and half of a sum where holders hand round what they share
    messages     what layer j hands on from the one before it crosses boundary j in every cut

Where only some neighbours talk, messages count as far as every cut of the windows has them (`boxes.Hops`). A row that
counts another message says nothing of some cuts. The two stages beside a silent boundary begin and end near to it.

Its least value over increasing boundaries is a running minimum, stage by stage. Any convex combination of rows is a
row. So `least` is a lower bound, and `narrowed` drops the boundaries at which every cut exceeds the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cluster import Sum
from planner.cuts import COMPUTE, CutProblem, updated_before
from planner.proof.boxes import NOTHING, ROUNDING, STEP, SYNC, Hops
from planner.proof.weights import Weights

Span = tuple[int, int]
_SLACK = ROUNDING / 2  # what a sum over stages may be off by before it is rounded up


@dataclass(frozen=True, eq=False)
class SeparableRows:
    """The rows of one problem as functions of single boundaries."""

    problem: CutProblem
    _hops: dict[tuple[bytes, bytes], Hops] = field(default_factory=dict)

    @cached_property
    def places(self) -> IntArray:
        """Returns the layers before which the model may be cut, with both ends."""
        return np.flatnonzero(self.problem.allowed)

    @cached_property
    def _work(self) -> FloatArray:
        """Returns [stage or one for all, compute kind, place] nanoseconds before each place."""
        prefix = self.problem.prefix_ns[:, :, self.places].astype(np.float64)
        same = bool((prefix == prefix[:, :1]).all())
        table: FloatArray = np.moveaxis(prefix[:, :1] if same else prefix, 1, 0)
        return table

    @cached_property
    def _bytes(self) -> FloatArray:
        """Returns [column, place]: gradients, elements, bytes that cross the place on their way on and back, and 1."""
        tables, places = self.problem.tables, self.places
        every = tables.summed[0], updated_before(tables, self.problem.shape)
        rows = [
            before[places] + more[places] for before, more in zip(every, _twice(self.problem), strict=True)
        ]
        return np.stack([*rows, *tables.talk.least_bytes[:, places], np.ones(len(places))])

    @cached_property
    def _sum_slopes(self) -> FloatArray:
        """Returns [stage] nanoseconds that a byte of gradients takes at least in its sum."""
        if self.problem.bare:
            return np.zeros(self.problem.stages)
        tables = self.problem.tables
        most, tied = int(tables.summed[0, -1]), int(tables.tied.max())
        tie = _chord(self.problem.tie, most) if tied else np.inf
        return np.array([min(_chord(own, most), tie) for own in self.problem.sums])

    @cached_property
    def _step_slopes(self) -> FloatArray:
        problem = self.problem
        share = np.inf if problem.bare else problem.shape.updaters
        return np.array(problem.slowness) * problem.tables.step_ns_per_element / share

    def heights(self, weights: Weights) -> FloatArray:
        """Returns the functions h_p of several rows.

        Args: `weights` are rows of time.
        Returns: [row, boundary, place] nanoseconds; the two ends count at place 0 and at the last place alone. Messages
            are left out where not all neighbours talk.
        """
        rows, depth = len(weights), self.problem.stages
        kinds = weights.kinds
        sums = kinds[:, SYNC] + kinds[:, STEP] * (0.5 if self.problem.shape.shard else 0.0)
        spread = np.stack([sums * self._sum_slopes, kinds[:, STEP] * self._step_slopes], 2)
        before = np.zeros((rows, depth + 1, len(self._bytes)))
        before[:, 1:, :2] += spread
        before[:, :-1, :2] -= spread
        inner = np.arange(1, depth if self.problem.chained else 1)
        act, grad = weights.hops[:, 0, inner - 1, inner], weights.hops[:, 1, inner, inner - 1]
        byte = self.problem.byte_ns[inner - 1, inner]
        before[:, inner, 2], before[:, inner, 3] = act * byte, grad * byte
        before[:, inner, 4] = (act + grad) * self.problem.latency_ns[inner - 1, inner]
        total: FloatArray = before @ self._bytes
        work = np.moveaxis(kinds[:, : len(COMPUTE)], 1, 2)
        if len(self._work) == 1:
            change = np.zeros((rows, depth + 1, len(COMPUTE)))
            change[:, 1:] += work
            change[:, :-1] -= work
            total += change @ self._work[0]
        else:
            line = np.einsum("rpk,pkj->rpj", work, self._work)
            total[:, 1:] += line
            total[:, :-1] -= line
        return total

    def messages(self, low: IntArray, high: IntArray) -> tuple[BoolArray, FloatArray]:
        """Returns the messages between neighbours that all cuts between two others have, and what they take.

        Returns: [act or grad, sender, receiver] truth values, and [act or grad, boundary, place] nanoseconds; no time
            for messages that some cut lacks.
        """
        problem, depth = self.problem, self.problem.stages
        there = np.zeros((2, depth, depth), np.bool_)
        ns = np.zeros((2, depth + 1, len(self.places)))
        hops = None if problem.chained else Hops(problem, problem.bounds(low), problem.bounds(high))
        for p, (first, last) in enumerate(self.spans(low, high)):
            if not 0 < p < depth or first == last:
                continue
            if hops is None:
                size = self._bytes[2:4, first:last]
                line = size * problem.byte_ns[p - 1, p] + problem.latency_ns[p - 1, p]
            else:
                line = np.stack(hops.between(p))[:, self.places[first:last] - int(problem.bounds(low)[p])]
            there[0, p - 1, p], there[1, p, p - 1] = sure = line.min(1) > NOTHING / 2
            ns[:, p, first:last] = line * sure[:, None]
        return there, ns

    def durations(self, shares: FloatArray, messages: FloatArray) -> FloatArray:
        """Returns what the stages of a mixture of cuts take, as `heights` prices them.

        Args: `shares` and `messages` are [boundary, place] and [act or grad, boundary, place].
        Returns: the nanoseconds of each kind and stage, then those of messages by the boundary that they cross.
        """
        problem, depth, count = self.problem, self.problem.stages, len(COMPUTE)
        stage = np.arange(depth)
        prefix = np.einsum("skj,pj->skp", self._work, shares)
        own = stage if len(prefix) > 1 else np.zeros(depth, np.int64)
        kinds = np.zeros((count + 2, depth))
        kinds[:count] = (prefix[own, :, stage + 1] - prefix[own, :, stage]).T + problem.launch_ns[:, None]
        size = np.diff(self._bytes[:2] @ shares.T)
        kinds[SYNC] = self._sum_slopes * size[0]
        kinds[STEP] = self._step_slopes * size[1] + (0.5 * kinds[SYNC] if problem.shape.shard else 0.0)
        hops = np.einsum("wpj,pj->wp", messages, shares)[:, 1:depth]
        return np.concatenate([kinds.ravel(), hops.ravel()]).clip(0.0)

    def _constants(self, weights: Weights) -> FloatArray:
        launches = np.tensordot(weights.kinds[:, : len(COMPUTE)].sum(2), self.problem.launch_ns, 1)
        found: FloatArray = weights.constant + launches - _SLACK
        return found

    def least(self, weights: Weights, low: IntArray, high: IntArray) -> tuple[float, IntArray]:
        """Returns the least value of a single row over the windows, and a cut that has it.

        Args: `weights` is one row; `low` and `high` are [boundary, then flag].
        Returns: nanoseconds and the cut; infinite and an empty cut where the windows have none.
        """
        spans = self.spans(low, high)
        self.problem.meter.priced(sum(last - first for first, last in spans))
        total, constants = self.parts(weights, low, high)
        values = [total[0][0]]
        for p in range(1, len(total)):
            values.append(self._onward(p - 1, values[-1], spans) + total[p][0])
        best = float(values[-1].min(initial=np.inf))
        if not np.isfinite(best):
            return np.inf, np.zeros(0, np.int64)
        at = [spans[-1][0] + int(values[-1].argmin())]
        for p in range(len(values) - 2, -1, -1):
            before = values[p][: at[-1] - spans[p][0]]
            arcs = self._arcs(p, spans[p], (at[-1], at[-1] + 1))
            if arcs is not None:
                before = np.where(arcs[: len(before), 0], before, np.inf)
            at.append(spans[p][0] + int(before.argmin()))
        cut = low.copy()  # where there are flags, with their least values
        cut[: len(at)] = self.places[at[::-1]]
        return best + float(constants[0]), cut

    def narrowed(
        self, weights: Weights, most: float, low: IntArray, high: IntArray
    ) -> tuple[IntArray, IntArray] | None:
        """Returns windows without the boundaries at which every cut costs more than `most` in some row.

        Args: `weights` are rows; `low` and `high` are [boundary, then flag].
        Returns: None where no cut is left.
        """
        depth, spans = self.problem.stages, self.spans(low, high)
        self.problem.meter.priced(3 * len(weights) * sum(last - first for first, last in spans))
        total, constants = self.parts(weights, low, high)
        ahead = [total[0]]
        for p in range(1, depth + 1):
            ahead.append(self._onward(p - 1, ahead[-1], spans) + total[p])
        behind = np.repeat(constants[:, None], total[depth].shape[1], 1)
        low, high = low.copy(), high.copy()
        for p in range(depth, -1, -1):
            left = np.flatnonzero((ahead[p] + behind <= most).all(0))
            if not len(left):
                return None
            low[p], high[p] = self.places[spans[p][0] + left[[0, -1]]]
            if p > 0:
                behind = self._backward(p - 1, behind + total[p], spans)
        return low, high

    def spans(self, low: IntArray, high: IntArray) -> list[Span]:
        """Returns the range of places in the window of every boundary."""
        low, high = self.problem.bounds(low), self.problem.bounds(high)
        first, last = np.searchsorted(self.places, low), np.searchsorted(self.places, high, side="right")
        return list(zip(first.tolist(), np.maximum(first, last).tolist(), strict=True))

    def parts(self, weights: Weights, low: IntArray, high: IntArray) -> tuple[list[FloatArray], FloatArray]:
        """Returns `heights` of each boundary within its window, and the constants of the rows."""
        heights, spans, constants = self.heights(weights), self.spans(low, high), self._constants(weights)
        parts = [heights[:, p, first:last] for p, (first, last) in enumerate(spans)]
        if self.problem.chained:
            return parts, constants
        low, high = self.problem.bounds(low), self.problem.bounds(high)
        key = (low.tobytes(), high.tobytes())
        if key not in self._hops:
            self._hops.clear()
            self._hops[key] = Hops(self.problem, low, high)
        hops = self._hops[key]
        for p in range(1, self.problem.stages):
            at = self.places[slice(*spans[p])] - low[p]
            parts[p] = parts[p] + hops.at(weights.hops, p)[:, at]
        return parts, constants + hops.far(weights.hops)

    def _arcs(self, stage: int, here: Span, there: Span) -> BoolArray | None:
        """Returns [begin, end] of places: which stages the cuts asked for may have; None where that is not limited."""
        begins, ends = self.places[slice(*here)], self.places[slice(*there)]
        joined = self.problem.joined(stage, begins, ends)
        return None if joined is None else joined & (begins[:, None] < ends[None, :])

    def _onward(self, stage: int, values: FloatArray, spans: list[Span]) -> FloatArray:
        """Returns, for every place of the window behind a stage, the least value at a place before the stage."""
        here, there = spans[stage], spans[stage + 1]
        arcs = self._arcs(stage, here, there)
        if arcs is not None:
            return _along(values, arcs)
        most = np.minimum(
            np.arange(*there) - here[0], here[1] - here[0]
        )  # how many places of this window come before
        return _running(values)[..., np.maximum(most, 0)]

    def _backward(self, stage: int, values: FloatArray, spans: list[Span]) -> FloatArray:
        """Returns, for every place of the window before a stage, the least value at a place behind the stage."""
        there, here = spans[stage], spans[stage + 1]
        arcs = self._arcs(stage, there, here)
        if arcs is not None:
            return _along(values, arcs.T)
        most = np.minimum(here[1] - 1 - np.arange(*there), here[1] - here[0])
        return _running(values[..., ::-1])[..., np.maximum(most, 0)]


def _along(values: FloatArray, arcs: BoolArray) -> FloatArray:
    """Returns, for every end, the least value at a begin from which there is an arc; infinite without one."""
    out: FloatArray = np.full((*values.shape[:-1], arcs.shape[1]), np.inf)
    begins, ends = np.flatnonzero(arcs.any(1)), np.flatnonzero(arcs.any(0))
    if len(begins) < len(ends):
        for k in begins.tolist():
            out[..., arcs[k]] = np.minimum(out[..., arcs[k]], values[..., k, None])
    else:
        for k in ends.tolist():
            out[..., k] = values[..., arcs[:, k]].min(-1)
    return out


def _running(values: FloatArray) -> FloatArray:
    """Returns the least of the first k values, for k from 0 on; infinite for none."""
    out: FloatArray = np.full((*values.shape[:-1], values.shape[-1] + 1), np.inf)
    np.minimum.accumulate(values, axis=-1, out=out[..., 1:])
    return out


def _chord(line: Sum, most: int) -> float:
    """Returns nanoseconds a byte that an all-reduce of at most so many bytes takes at least."""
    return float(line.ns(np.array([most]))[0] - 1) / most if most else 0.0


def _twice(problem: CutProblem) -> tuple[FloatArray, FloatArray]:
    """Returns bytes and elements before each place, by last user, of parameters whose users never share a stage.

    Where whole parameters are dealt out, their elements are one stage's.
    """
    graph, longest = problem.tables.graph, problem.layers - problem.stages + 1
    found = np.zeros((2, problem.layers + 1))
    for parameter in graph.trained:
        users = [graph.index[name] for name in parameter.users]
        if max(users) - min(users) >= longest:
            found[:, max(users) + 1] += parameter.bytes, prod(parameter.shape)
    bytes_, elements = found.cumsum(1)
    return bytes_, np.zeros_like(elements) if problem.shape.shard else elements
