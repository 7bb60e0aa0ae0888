"""Bounds rows by sums of functions of single boundaries: lower bounds in time linear in the layers.

Where neighbours always talk, a row of path counts is at least `constant + sum over p of h_p(c_p)`:

    compute      differences of prefix sums, exactly
    sum          an all-reduce is concave in its bytes, so it lies above its chord from 0 to all bytes there are; and
                 the bytes of [i, j) are at least those of the parameters whose first user lies there, and those whose
                 last user does, if no stage is long enough to hold both
    update       the same of elements, and half of a sum where holders hand round what they share
    messages     what layer j hands on from the one before it crosses boundary j in every cut

Its least value over increasing boundaries is a running minimum, stage by stage. Any convex combination of rows is a
row. So `least` is a lower bound, and `narrowed` drops the boundaries at which every cut exceeds the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.cluster import Sum
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.stage_costs import COMPUTE
from planner.milp.proof.boxes import ROUNDING, STEP, SYNC
from planner.milp.proof.weights import Weights

Span = tuple[int, int]
_SLACK = ROUNDING / 2  # what a sum over stages may be off by before it is rounded up


@dataclass(frozen=True, eq=False)
class SeparableRows:
    """The rows of one problem as functions of single boundaries; every stage feeds the next."""

    problem: CutProblem

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
        edges = tables.edges
        rows = [
            table[0, places] + more[places]
            for table, more in zip((tables.gradients, tables.elements), _twice(self.problem), strict=True)
        ]
        for chosen in (edges.consumer == edges.made + 1, (edges.consumer == edges.made + 1) & edges.backward):
            sizes = np.bincount(edges.consumer[chosen], edges.bytes[chosen], tables.layers + 1)
            rows.append(sizes[places])
        return np.stack([*rows, np.ones(len(places))])

    @cached_property
    def _sum_slopes(self) -> FloatArray:
        """Returns [stage] nanoseconds that a byte of gradients takes at least in its sum."""
        tables = self.problem.tables
        most, tied = int(tables.gradients[0, -1]), int(tables.tied.max())
        tie = _chord(self.problem.tie, most) if tied else np.inf
        return np.array([min(_chord(own, most), tie) for own in self.problem.sums])

    @cached_property
    def _step_slopes(self) -> FloatArray:
        problem = self.problem
        share = problem.holders if problem.shape.shard else 1
        return np.array(problem.slowness) * problem.tables.step_ns_per_element / share

    def heights(self, weights: Weights) -> FloatArray:
        """Returns the functions h_p of several rows.

        Args: `weights` are rows of time.
        Returns: [row, boundary, place] nanoseconds; the two ends count at place 0 and at the last place alone.
        """
        rows, depth = len(weights), self.problem.stages
        kinds = weights.kinds
        sums = kinds[:, SYNC] + kinds[:, STEP] * (0.5 if self.problem.shape.shard else 0.0)
        spread = np.stack([sums * self._sum_slopes, kinds[:, STEP] * self._step_slopes], 2)
        before = np.zeros((rows, depth + 1, len(self._bytes)))
        before[:, 1:, :2] += spread
        before[:, :-1, :2] -= spread
        inner = np.arange(1, depth)
        act, grad = weights.hops[:, 0, inner - 1, inner], weights.hops[:, 1, inner, inner - 1]
        byte = self.problem.byte_ns[inner - 1, inner]
        before[:, 1:depth, 2], before[:, 1:depth, 3] = act * byte, grad * byte
        before[:, 1:depth, 4] = (act + grad) * self.problem.latency_ns[inner - 1, inner]
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

    def _constants(self, weights: Weights) -> FloatArray:
        launches = np.tensordot(weights.kinds[:, : len(COMPUTE)].sum(2), self.problem.launch_ns, 1)
        found: FloatArray = weights.constant + launches - _SLACK
        return found

    def least(self, weights: Weights, low: IntArray, high: IntArray) -> tuple[float, IntArray]:
        """Returns the least value of a single row over the windows, and a cut that has it.

        Args: `weights` is one row; `low` and `high` are [boundary, then flag].
        Returns: nanoseconds and the cut; infinite and an empty cut where the windows have none.
        """
        spans = self._spans(low, high)
        self.problem.meter.priced(sum(last - first for first, last in spans))
        total = self._parts(weights, spans)
        values = [total[0][0]]
        for p in range(1, len(total)):
            values.append(_onward(values[-1], spans[p - 1], spans[p]) + total[p][0])
        best = float(values[-1].min(initial=np.inf))
        if not np.isfinite(best):
            return np.inf, np.zeros(0, np.int64)
        at = [spans[-1][0] + int(values[-1].argmin())]
        for p in range(len(values) - 2, -1, -1):
            at.append(spans[p][0] + int(values[p][: at[-1] - spans[p][0]].argmin()))
        cut = low.copy()  # where there are flags, with their least values
        cut[: len(at)] = self.places[at[::-1]]
        return best + float(self._constants(weights)[0]), cut

    def narrowed(
        self, weights: Weights, most: float, low: IntArray, high: IntArray
    ) -> tuple[IntArray, IntArray] | None:
        """Returns windows without the boundaries at which every cut costs more than `most` in some row.

        Args: `weights` are rows; `low` and `high` are [boundary, then flag].
        Returns: None where no cut is left.
        """
        depth, spans = self.problem.stages, self._spans(low, high)
        self.problem.meter.priced(3 * len(weights) * sum(last - first for first, last in spans))
        total = self._parts(weights, spans)
        ahead = [total[0]]
        for p in range(1, depth + 1):
            ahead.append(_onward(ahead[-1], spans[p - 1], spans[p]) + total[p])
        behind = np.repeat(self._constants(weights)[:, None], total[depth].shape[1], 1)
        low, high = low.copy(), high.copy()
        for p in range(depth, -1, -1):
            left = np.flatnonzero((ahead[p] + behind <= most).all(0))
            if not len(left):
                return None
            low[p], high[p] = self.places[spans[p][0] + left[[0, -1]]]
            if p > 0:
                behind = _backward(behind + total[p], spans[p], spans[p - 1])
        return low, high

    def _spans(self, low: IntArray, high: IntArray) -> list[Span]:
        """Returns the range of places in the window of every boundary."""
        low, high = self.problem.bounds(low), self.problem.bounds(high)
        first, last = np.searchsorted(self.places, low), np.searchsorted(self.places, high, side="right")
        return list(zip(first.tolist(), np.maximum(first, last).tolist(), strict=True))

    def _parts(self, weights: Weights, spans: list[Span]) -> list[FloatArray]:
        """Returns `heights` of each boundary within its window."""
        heights = self.heights(weights)
        return [heights[:, p, first:last] for p, (first, last) in enumerate(spans)]


def _onward(values: FloatArray, here: Span, there: Span) -> FloatArray:
    """Returns, for every place of the next window, the least value at a place before it."""
    most = np.minimum(
        np.arange(*there) - here[0], here[1] - here[0]
    )  # how many places of this window come before
    return _running(values)[..., np.maximum(most, 0)]


def _backward(values: FloatArray, here: Span, there: Span) -> FloatArray:
    """Returns, for every place of the window before, the least value at a place after it."""
    most = np.minimum(here[1] - 1 - np.arange(*there), here[1] - here[0])
    return _running(values[..., ::-1])[..., np.maximum(most, 0)]


def _running(values: FloatArray) -> FloatArray:
    """Returns the least of the first k values, for k from 0 on; infinite for none."""
    out: FloatArray = np.full((*values.shape[:-1], values.shape[-1] + 1), np.inf)
    np.minimum.accumulate(values, axis=-1, out=out[..., 1:])
    return out


def _chord(line: Sum, most: int) -> float:
    """Returns nanoseconds a byte that an all-reduce of at most so many bytes takes at least."""
    return float(line.ns(np.array([most]))[0] - 1) / most if most else 0.0


def _twice(problem: CutProblem) -> tuple[FloatArray, FloatArray]:
    """Returns bytes and elements before each place, by last user, of parameters whose users never share a stage."""
    graph, longest = problem.tables.graph, problem.layers - problem.stages + 1
    found = np.zeros((2, problem.layers + 1))
    for parameter in graph.trained:
        users = [graph.index[name] for name in parameter.users]
        if max(users) - min(users) >= longest:
            found[:, max(users) + 1] += parameter.bytes, prod(parameter.shape)
    bytes_, elements = found.cumsum(1)
    return bytes_, elements
