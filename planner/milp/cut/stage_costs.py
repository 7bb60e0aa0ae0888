"""What the stages of a shape hold and take, for any boundaries: bytes by the order, nanoseconds by the tables.

A cut is an integer row `0 = c_0 < c_1 < ... < c_D = layers`; stage p holds the layers c_p .. c_{p+1} - 1. Everything
here is evaluated for many cuts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cluster import NOISE, Sum
from planner.cost import hop_bytes
from planner.milp.configurations.placement import Placement
from planner.milp.cut.frozen_order import Order, WorkMeter
from planner.milp.cut.recompute_least import LeastRecompute, settled
from planner.milp.cut.stage_bytes import Sizes
from planner.schedule import Kind

KINDS = tuple(Kind)
_GRIDS = 100  # kept at a time
_TABLED = 300  # layers up to which what a single problem needs of every interval is kept
COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Of a batch of cuts: nanoseconds a (kind, stage), bytes and nanoseconds a message that any of them has."""

    kinds: IntArray  # [cut, kind, stage]
    cells: IntArray  # of [act or grad, sender, receiver] laid flat, increasing
    hop_bytes: IntArray  # [cut, cell]
    hop_ns: IntArray


class GridKey(NamedTuple):
    """What a table over all intervals of layers holds, of which layers, and what else it depends on."""

    what: Literal["sync", "step", "fixed", "moving", "again", "counted"]
    tables: Hashable
    depends_on: tuple[Hashable, ...]


@dataclass(frozen=True, kw_only=True)
class StageCosts(Sizes):
    mesh: Placement
    prefix_ns: IntArray  # [compute kind, stage, layers + 1]
    launch_ns: IntArray  # [compute kind]: of every action besides its layers
    update_ns: int  # of every update besides
    sums: tuple[Sum, ...]  # a stage
    tie: Sum  # over every device, for parameters that several stages use
    latency_ns: FloatArray  # [stage, stage]
    byte_ns: FloatArray
    slowness: tuple[float, ...]  # a stage
    grids: dict[GridKey, IntArray]  # tables over all intervals, shared between problems
    meter: WorkMeter
    allowed: BoolArray  # the boundaries that a cut may have
    fixed: IntArray | None = None  # the cut, where the shape includes it
    least: LeastRecompute | None = (
        None  # where only some stages recompute; `prefix_ns` then has no recomputation
    )
    flagged: ClassVar[bool] = (
        False  # whether a flag a stage follows the boundaries; see `planner.milp.choosing`
    )

    @cached_property
    def chained(self) -> bool:
        """Every stage feeds the next one and gets a gradient back: neighbours always talk."""
        return bool(self.tables.direct[self.allowed].all())

    @property
    def moments(self) -> tuple[IntArray, ...]:
        return self.order.moments

    def pointed(self, cut: IntArray, flag: int) -> IntArray:
        """A cut with this flag for every stage, where stages have one."""
        return cut

    @property
    def width(self) -> int:
        """Of a cut, as a row."""
        return self.stages * (2 if self.flagged else 1) + 1

    def bounds(self, points: IntArray) -> IntArray:
        """Boundaries alone."""
        return points

    def bytes_of(self, cut: IntArray) -> tuple[IntArray, IntArray]:
        """[stage] throughout a step and [stage, part] of a micro-batch, as rows of `moments` count them."""
        return self.fixed_bytes(cut[:-1], cut[1:]), self.moving_bytes(cut[:-1], cut[1:])

    def decided(self, low: IntArray, high: IntArray) -> list[tuple[int, IntArray]]:
        """Workers whose moments are others than `moments`, and these, for every cut between these two."""
        return []

    def redoes(self, flag: int) -> bool:
        """Whether `again_ns` says what recomputing takes."""
        return self.least is not None

    @cached_property
    def hosted(self) -> IntArray:
        """[worker, stage]: how many pipes have this stage there."""
        out: IntArray = np.zeros((self.schedule.workers, self.stages), np.int64)
        for pipe in self.schedule.place:
            np.add.at(out, (list(pipe), range(self.stages)), 1)
        return out

    @cached_property
    def available_bytes(self) -> IntArray:
        """A worker: memory less the margin."""
        return np.array(self.mesh.capacity_bytes, np.int64) - np.array(self.mesh.margin_bytes, np.int64)

    def memory(self, cuts: IntArray) -> IntArray:
        """[cut, worker]: bytes at the worst moment, without the margin."""
        low, high = cuts[:, :-1], cuts[:, 1:]
        fixed: IntArray = self.fixed_bytes(low, high) @ self.hosted.T
        total: IntArray = fixed + self._peaks(self.moments, self.moving_bytes(low, high))
        if self.least is not None:
            moving = self.moving_of(low, high, np.False_)
            plain: IntArray = fixed + self._peaks(self.least.moments, moving)
            total = np.where(plain <= self.available_bytes, plain, total)
            for p, worker in enumerate(self.hosted.argmax(0).tolist()):
                lacks = total[:, worker] - self.available_bytes[worker]
                more = self.least.parted_shortage(p, low[:, p], high[:, p], lacks)
                total[:, worker] = more + self.available_bytes[worker]
        return total

    def _peaks(self, moments: tuple[IntArray, ...], moving: IntArray) -> IntArray:
        """[cut, worker]: of activations. Doubles hold bytes exactly, and are multiplied far faster than integers."""
        out: IntArray = np.zeros((len(moving), len(moments)), np.int64)
        for worker, rows in enumerate(moments):
            own = np.flatnonzero(self.hosted[worker])
            counts = rows[:, own].reshape(len(rows), -1).astype(np.float64)
            parts = moving[:, own].reshape(len(moving), -1).astype(np.float64)
            out[:, worker] = (parts @ counts.T).max(1)
        return out

    def again_ns(self, stage: int, begins: IntArray, ends: IntArray) -> IntArray:
        """[begin, end]: nanoseconds of recomputing where only some stages do, over two rows of boundaries."""
        least = self.least
        assert least is not None
        if self.layers > _TABLED:
            return least.redone_ns(stage, begins[:, None], np.maximum(ends[None, :], begins[:, None]))
        key = GridKey("again", self.tables.key, (least, stage))
        table = self._grid(key, lambda i, j: least.redone_ns(stage, i, j))
        return table[np.ix_(begins, ends)]

    def spared(self, plain: Order, *, by_layer: bool) -> Self:
        """The same where stages recompute only if they must; `plain` is the order without recomputation."""
        row, prefix, launch = COMPUTE.index(Kind.R), self.prefix_ns.copy(), self.launch_ns.copy()
        least = LeastRecompute(
            sizes=self,
            hosted=self.hosted,
            available_bytes=self.available_bytes,
            prefix_ns=prefix[row].copy(),
            launch_ns=int(launch[row]),
            moments=plain.moments,
            by_layer=by_layer,
        )
        prefix[row], launch[row] = 0, 0
        return replace(self, prefix_ns=prefix, launch_ns=launch, least=least)

    def settled(self, cut: IntArray) -> Self:
        """With recomputation in the order only where this cut needs it."""
        if self.least is None:
            return self
        row, prefix, launch = COMPUTE.index(Kind.R), self.prefix_ns.copy(), self.launch_ns.copy()
        prefix[row], launch[row] = self.least.prefix_ns, self.least.launch_ns
        until = np.concatenate(
            [self.least.recomputed(p, cut[p : p + 1], cut[p + 1 : p + 2]) for p in range(self.stages)]
        )
        order = settled(self.schedule, until > cut[:-1])
        return replace(self, order=order, prefix_ns=prefix, launch_ns=launch, least=None, until=until)

    def durations(self, cuts: IntArray) -> Durations:
        cuts = np.atleast_2d(cuts)
        cells, sizes = hop_bytes(self.tables.edges, self.tables.layers, cuts)
        ns = self._hop_ns(cells, sizes)
        return Durations(kinds=self._kinds(cuts), cells=cells, hop_bytes=sizes, hop_ns=ns)

    def _kinds(self, cuts: IntArray) -> IntArray:
        low, high = cuts[:, :-1], cuts[:, 1:]
        stage = np.arange(self.stages)
        out: IntArray = np.zeros((len(cuts), len(KINDS), self.stages), np.int64)
        for row, prefix in enumerate(self.prefix_ns):
            out[:, row] = prefix[stage, high] - prefix[stage, low] + self.launch_ns[row]
        for p, alike in self._alike:
            out[:, KINDS.index(Kind.SYNC), alike] = self.sync_ns(p, low[:, alike], high[:, alike])
            out[:, KINDS.index(Kind.STEP), alike] = self.step_ns(p, low[:, alike], high[:, alike])
        again = KINDS.index(Kind.R)
        if self.least is not None:
            for p in range(self.stages):
                out[:, again, p] = self.least.redone_ns(p, low[:, p], high[:, p])
        if self.until is not None:
            row, launch = self.prefix_ns[COMPUTE.index(Kind.R)], self.launch_ns[COMPUTE.index(Kind.R)]
            out[:, again] = row[stage, self.until] - row[stage, low] + launch
        return out

    @cached_property
    def _alike(self) -> list[tuple[int, list[int]]]:
        """Stages whose sums and updates are priced alike, behind the first of them."""
        found: dict[tuple[Sum, float], list[int]] = {}
        for p, key in enumerate(zip(self.sums, self.slowness, strict=True)):
            found.setdefault(key, []).append(p)
        return [(alike[0], alike) for alike in found.values()]

    def sync_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        return self.own_sync_ns(stage, low, high) + self.tie.ns(self.tables.tied[low, high])

    def own_sync_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Of what no other stage uses: no less for a stage that has these layers and more."""
        return self.sums[stage].ns(self.tables.gradients[low, high] - self.tables.tied[low, high])

    def step_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        return self.handed_on_ns(stage, low, high, self.sync_ns(stage, low, high))

    def handed_on_ns(self, stage: int, low: IntArray, high: IntArray, sync_ns: IntArray) -> IntArray:
        """What is shared is handed round once updated, which takes half of what the sum of its gradients takes."""
        rate = self.tables.step_ns_per_element * self.slowness[stage]
        ns: IntArray = np.ceil(self._updated(low, high) * rate - NOISE).astype(np.int64)
        handed = (sync_ns + 1) // 2 if self.shape.shard else 0
        return ns + handed + self.update_ns

    def sync_grid(self, stage: int) -> IntArray:
        """`sync_ns` of every interval."""
        key = GridKey("sync", self.tables.key, (self.sums[stage], self.tie))
        return self._grid(key, lambda i, j: self.sync_ns(stage, i, j))

    def step_grid(self, stage: int) -> IntArray:
        shared = (self.holders, self.sums[stage], self.tie) if self.shape.shard else ()
        key = GridKey("step", self.tables.key, (self.slowness[stage], *shared))
        return self._grid(key, lambda i, j: self.step_ns(stage, i, j))

    @cached_property
    def fixed_grid(self) -> IntArray:
        share = self.holders if self.shape.shard else 1
        return self._grid(GridKey("fixed", self.tables.key, (share, self._throughout)), self.fixed_bytes)

    def moving_grid(self, stage: int, flag: int = 0) -> IntArray:
        return self._moving_grid(self._again[stage])

    @cached_property
    def plain_grid(self) -> IntArray:
        """Of a stage that does not recompute."""
        return self._moving_grid(np.False_)

    @cached_property
    def most_moving(self) -> IntArray:
        """[part]: the most of any stage."""
        grids = [self._moving_grid(again) for again in np.unique(self._again)]
        most: IntArray = np.max([grid.max((0, 1)) for grid in grids], 0)
        return most

    def _moving_grid(self, again: np.bool_) -> IntArray:
        share = self.holders if self.shape.shard else 1
        key = GridKey("moving", self.tables.key, (share, bool(again), self.order.owes))
        return self._grid(key, lambda i, j: self.moving_of(i, j, again))

    def _grid(self, key: GridKey, price: Callable[[IntArray, IntArray], IntArray]) -> IntArray:
        if key not in self.grids:
            if len(self.grids) >= _GRIDS:
                self.grids.clear()
            every = np.arange(self.layers + 1)
            self.grids[key] = price(every[:, None], np.maximum(every[None, :], every[:, None]))
        return self.grids[key]

    def _hop_ns(self, cells: IntArray, sizes: IntArray) -> IntArray:
        byte = np.stack([self.byte_ns, self.byte_ns.T]).ravel()[cells]
        latency = np.stack([self.latency_ns, self.latency_ns.T]).ravel()[cells]
        return np.where(sizes > 0, np.ceil(sizes * byte + latency - NOISE), 0).astype(np.int64)
