"""Bounds all cuts of a box from below: a row of path counts prices arcs, and a shortest path is its least value.

A box has a window lo_p <= c_p <= hi_p for every boundary, and the arcs (c_p, c_{p+1}) still alive for every stage. A
path through the schedule bounds the step from below: a "row", a sum over stages of functions of (c_p, c_{p+1}). Its
least value over a box is a shortest path. An arc goes if its paths cost the incumbent or more. Mixed rows are rows.

Messages are priced from below: between neighbours with what surely crosses their boundary for any cut of the box,
between others with what surely travels. A row that counts a message which some cut lacks says nothing about that cut,
hence `NOTHING`. If every layer depends on the one before it, a receiver waits for the sender anyway, and it counts 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cluster import NOISE
from planner.cuts import COMPUTE, KINDS, CutProblem
from planner.proof.weights import Weights
from planner.schedule import Kind

SYNC, STEP, AGAIN = (KINDS.index(kind) for kind in (Kind.SYNC, Kind.STEP, Kind.R))
NOTHING = -1e18  # stands for minus infinity; finite, so that dead arcs stay infinite
_CELLS = 1 << 20  # arcs x rows of which the meter counts the pricing as one
_ABREAST = 1 << 16  # arcs x rows that are evaluated at once: more would not stay in a processor's cache
ROUNDING = 0.01  # times are integers far below 2**50: sums of doubles are off by less


@dataclass(frozen=True, kw_only=True)
class Box:
    """A set of cuts: a window for every boundary, and the arcs that are still alive."""

    problem: CutProblem
    low: IntArray  # [boundary], 0 and the number of layers at the ends; then a flag a stage, where they have one
    high: IntArray
    alive: tuple[BoolArray, ...]  # a stage: [c_p - low_p, c_{p+1} - low_{p+1}]

    @property
    def point(self) -> bool:
        return bool((self.low == self.high).all())

    @property
    def cells(self) -> int:
        return sum(alive.size for alive in self.alive)

    def window(self, p: int) -> IntArray:
        return np.arange(self.low[p], self.high[p] + 1)

    def flags(self, p: int) -> range:
        """Returns the flags that a stage may still have: whether it recomputes; range(1) without flags."""
        if not self.problem.flagged:
            return range(1)
        at = len(self.alive) + 1 + p
        return range(int(self.low[at]), int(self.high[at]) + 1)

    @cached_property
    def blocked(self) -> tuple[FloatArray, ...]:
        return tuple(np.where(alive, 0.0, np.inf) for alive in self.alive)

    @cached_property
    def hops(self) -> Hops:
        return Hops(self.problem, self.low, self.high)

    def bottleneck(self, costs: Sequence[IntArray] | Sequence[FloatArray]) -> IntArray:
        """Returns the boundaries along which the largest cost of a stage is least; `costs` are shaped as `alive`."""
        value: IntArray | FloatArray = np.full(1, -(1 << 62))
        back = []
        for cost in costs:
            total = np.maximum(value[:, None], cost)
            back.append(total.argmin(0))
            value = total.min(0)
        cut, at = [int(self.high[len(back)])], 0
        for p in range(len(back) - 1, -1, -1):
            at = int(back[p][at])
            cut.append(int(self.low[p]) + at)
        return np.array(cut[::-1], np.int64)

    def split(self, p: int, at: int) -> tuple[Box | None, Box | None]:
        """Returns the box where c_p <= `at` and the box where c_p > `at`; None for an empty one."""
        high, low = self.high.copy(), self.low.copy()
        high[p], low[p] = at, at + 1
        return self.narrowed(self.low, high), self.narrowed(low, self.high)

    def narrowed(self, low: IntArray, high: IntArray) -> Box | None:
        if (low > high).any():
            return None
        cut = [
            alive[low[p] - self.low[p] : high[p] - self.low[p] + 1, low[p + 1] - self.low[p + 1] :][
                :, : high[p + 1] - low[p + 1] + 1
            ]
            for p, alive in enumerate(self.alive)
        ]
        return replace(self, low=low, high=high, alive=tuple(cut)).trimmed()

    def without(self, dead: Sequence[BoolArray]) -> Box | None:
        alive = tuple(a & ~d for a, d in zip(self.alive, dead, strict=True))
        return replace(self, alive=alive).trimmed()

    def trimmed(self) -> Box | None:
        """Returns the box with only the arcs on a path from end to end and their windows; None without a path."""
        reach: list[BoolArray] = [np.ones(1, np.bool_)]
        for alive in self.alive:
            reach.append(np.asarray((alive & reach[-1][:, None]).any(0)))
        back: list[BoolArray] = [np.ones(1, np.bool_)]
        for alive in reversed(self.alive):
            back.append(np.asarray((alive & back[-1][None, :]).any(1)))
        used = [f & b for f, b in zip(reach, reversed(back), strict=True)]
        if not all(u.any() for u in used):
            return None
        spans = [np.flatnonzero(u)[[0, -1]] for u in used]
        kept: tuple[BoolArray, ...] = tuple(
            (a & used[p][:, None] & used[p + 1][None, :])[
                spans[p][0] : spans[p][1] + 1, spans[p + 1][0] : spans[p + 1][1] + 1
            ]
            for p, a in enumerate(self.alive)
        )
        low, high = self.low.copy(), self.high.copy()
        low[: len(spans)] = self.low[: len(spans)] + np.array([s[0] for s in spans])
        high[: len(spans)] = self.low[: len(spans)] + np.array([s[1] for s in spans])
        return Box(problem=self.problem, low=low, high=high, alive=kept)

    def arc(self, weights: Weights, p: int) -> FloatArray:
        """Returns [row, c_p, c_{p+1}] prices: infinite where the arc is dead, else the least over the stage's flags."""
        found: FloatArray = np.minimum.reduce(self._arcs(weights, p))
        return found

    def _arcs(self, weights: Weights, p: int) -> list[FloatArray]:
        """Returns the prices of a stage's arcs, flag by flag."""
        return [self._arc(weights, p, flag) for flag in self.flags(p)]

    def _arc(self, weights: Weights, p: int, flag: int) -> FloatArray:
        problem, low, high = self.problem, self.window(p), self.window(p + 1)
        line = weights.kinds[:, : len(COMPUTE), p] @ problem.prefix_ns[:, p]
        start = line[:, low] - self.hops.at(weights.hops, p) if p > 0 else line[:, low]
        start = start - (weights.kinds[:, : len(COMPUTE), p] @ problem.launch_ns)[:, None]
        cost: FloatArray = self.blocked[p] + line[:, None, high]
        cost -= start[:, :, None]
        for row, table in self._tables(weights, p, flag):
            cost += row[:, None, None] * table
        return cost

    def _tables(self, weights: Weights, p: int, flag: int) -> Iterator[tuple[FloatArray, IntArray]]:
        """Yields factors and tables of the costs of a stage that are no differences of prefix sums."""
        problem = self.problem
        if weights.kinds[:, SYNC, p].any():
            yield weights.kinds[:, SYNC, p], self.cell(problem.sync_grid(p), p)
        if weights.kinds[:, STEP, p].any():
            yield weights.kinds[:, STEP, p], self.cell(problem.step_grid(p), p)
        if problem.redoes(flag) and weights.kinds[:, AGAIN, p].any():
            yield weights.kinds[:, AGAIN, p], problem.again_ns(p, self.window(p), self.window(p + 1))
        if weights.fixed[:, p].any():
            yield weights.fixed[:, p], self.cell(problem.fixed_grid, p)
        if weights.moving[:, p].any():
            parts = self.cell(problem.moving_grid(p, flag), p)
            for part in range(parts.shape[-1]):
                yield weights.moving[:, p, part], parts[..., part]

    def cell(self, grid: IntArray, p: int) -> IntArray:
        """Returns the part of a table over all intervals that stage p can have."""
        low, high = self.low, self.high
        return grid[low[p] : high[p] + 1, low[p + 1] : high[p + 1] + 1]

    def least(self, weights: Weights) -> tuple[float, IntArray]:
        """Returns the least value of a single row over the box, and a cut that has it."""
        self.problem.meter.priced(sum(a.size for a in self.alive))
        value: FloatArray = np.zeros(1)
        back, arcs, depth = [], [], len(self.alive)
        for p in range(depth):
            arcs.append(self._arcs(weights, p))
            total = value[:, None] + np.minimum.reduce(arcs[-1])[0]
            choice = total.argmin(0)
            back.append(choice)
            value = total[choice, np.arange(total.shape[1])]
        point, at = self.low.copy(), 0
        point[depth] = self.high[depth]
        for p in range(depth - 1, -1, -1):
            end, at = at, int(back[p][at])
            point[p] = self.low[p] + at
            if self.problem.flagged:
                point[depth + 1 + p] += int(np.argmin([own[0, at, end] for own in arcs[p]]))
        constant = float(weights.constant[0] + self.hops.far(weights.hops)[0])
        return float(value[0]) + constant, point

    def _through(self, weights: Weights) -> list[list[FloatArray]]:
        """Returns [row, c_p, c_{p+1}] of each stage, flag by flag: the row's least value over cuts that use the arc."""
        arcs = [self._arcs(weights, p) for p in range(len(self.alive))]
        costs = [np.minimum.reduce(own) for own in arcs]
        ahead: list[FloatArray] = [np.zeros((len(weights), 1))]
        for cost in costs:
            ahead.append((ahead[-1][:, :, None] + cost).min(1))
        behind: list[FloatArray] = [(weights.constant + self.hops.far(weights.hops))[:, None]]
        for cost in reversed(costs):
            behind.append((cost + behind[-1][:, None, :]).min(2))
        behind.reverse()
        return [
            [ahead[p][:, :, None] + cost + behind[p + 1][:, None, :] for cost in own]
            for p, own in enumerate(arcs)
        ]

    def filtered(self, weights: Weights, most: float) -> Box | None:
        """Returns the box without arcs and flags with which every cut costs over `most` in some row; None if empty."""
        size = max(a.size for a in self.alive)
        rows = max(1, _ABREAST // size)
        over = [[np.zeros(a.shape, np.bool_) for _ in self.flags(p)] for p, a in enumerate(self.alive)]
        count = sum(a.size * len(self.flags(p)) for p, a in enumerate(self.alive))
        for done in range(0, len(weights), _CELLS // size or 1):
            self.problem.meter.priced(4 * min(_CELLS // size or 1, len(weights) - done) * count)
        for first in range(0, len(weights), rows):
            for known, values in zip(
                over, self._through(weights.part(slice(first, first + rows))), strict=True
            ):
                for own, value in zip(known, values, strict=True):
                    own |= (value > most).any(0)
        dead = [np.logical_and.reduce(own) for own in over]
        box = self._decided(over) if self.problem.flagged else self
        if not any((d & a).any() for d, a in zip(dead, self.alive, strict=True)):
            return box
        return box.without(dead)

    def _decided(self, over: Sequence[Sequence[BoolArray]]) -> Box:
        """Returns the box with only the flags with which some arc of their stage is not over."""
        low, high, first = self.low.copy(), self.high.copy(), len(self.alive) + 1
        for p, (alive, own) in enumerate(zip(self.alive, over, strict=True)):
            left = [flag for flag, each in zip(self.flags(p), own, strict=True) if (alive & ~each).any()]
            if left:
                low[first + p], high[first + p] = left[0], left[-1]
        same = (low == self.low).all() and (high == self.high).all()
        return self if same else replace(self, low=low, high=high)


class Hops:
    """The least nanoseconds of messages between windows; NOTHING where a cut of the windows may lack the message."""

    def __init__(self, problem: CutProblem, low: IntArray, high: IntArray) -> None:
        self.problem, self.low, self.high = problem, low, high
        self._near: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._far: dict[tuple[int, int, int], float] = {}

    def at(self, hops: FloatArray, p: int) -> FloatArray:
        """Returns [row, c_p] nanoseconds of the messages between stages p - 1 and p."""
        total: FloatArray = np.zeros((len(hops), int(self.high[p] - self.low[p]) + 1))
        for way, share in ((0, hops[:, 0, p - 1, p]), (1, hops[:, 1, p, p - 1])):
            if share.any():
                total = total + share[:, None] * self.between(p)[way]
        return total

    def between(self, p: int) -> tuple[FloatArray, FloatArray]:
        """Returns [c_p] nanoseconds of what stage p - 1 sends on, and of what comes back to it."""
        if p not in self._near:
            self._near[p] = self._measure(p)
        return self._near[p]

    def _measure(self, p: int) -> tuple[FloatArray, FloatArray]:
        low, high = self.low, self.high
        edges = self.problem.tables.edges.between(int(low[p]), int(high[p]))
        j = np.arange(low[p], high[p] + 1)[:, None]
        begin, end = np.minimum(high[p - 1], j - 1), np.maximum(low[p + 1], j + 1)
        crosses = (edges.previous < j) & (j <= edges.consumer) & (edges.consumer < end)
        sure = (
            (crosses & (edges.made >= begin)) @ edges.bytes,
            (crosses & (edges.previous >= begin) & edges.backward) @ edges.bytes,
        )
        if talk := self.problem.talk_at(p):
            least = self.problem.tables.talk.least_bytes[:, low[p] : high[p] + 1]
            sure = np.maximum(sure[0], least[0]), np.maximum(sure[1], least[1])
        latency, byte = self.problem.latency_ns[p - 1, p], self.problem.byte_ns[p - 1, p]
        line, absent = [np.ceil(size * byte + latency - NOISE) for size in sure], 0.0 if talk else NOTHING
        return np.where(sure[0] > 0, line[0], absent), np.where(sure[1] > 0, line[1], absent)

    def far(self, hops: FloatArray) -> FloatArray:
        """Returns [row] nanoseconds of the messages that skip a stage, for any cut of the windows."""
        total: FloatArray = np.zeros(len(hops))
        for way, a, b in np.argwhere(hops.any(0)).tolist():
            if abs(a - b) > 1:
                if (way, a, b) not in self._far:
                    self._far[way, a, b] = self._skip(way, a, b)
                total += hops[:, way, a, b] * self._far[way, a, b]
        return total

    def _skip(self, way: int, sender: int, receiver: int) -> float:
        """Returns nanoseconds of a message; none where a cut without it has all messages between neighbours there."""
        edges, low, high = self.problem.tables.edges, self.low, self.high
        early, late = min(sender, receiver), max(sender, receiver)
        source = edges.previous if way else edges.made
        sure = (source >= high[early]) & (source < low[early + 1]) & (edges.previous < low[late])
        sure &= (edges.consumer >= high[late]) & (edges.consumer < low[late + 1])
        if way:
            sure = sure & edges.backward
        size = int(edges.bytes[sure].sum())
        line = size * self.problem.byte_ns[early, late] + self.problem.latency_ns[early, late]
        absent = 0.0 if all(map(self.problem.talk_at, range(early + 1, late + 1))) else NOTHING
        return float(np.ceil(line - NOISE)) if size else absent
