"""The costs of the stages of a configuration, for any boundaries: bytes by the order, nanoseconds by the tables.

A cut is a row `0 = c_0 < c_1 < ... < c_D = layers`; stage p holds layers c_p .. c_{p+1} - 1. Many are taken at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np

from planner import limits
from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cluster import NOISE, Sum
from planner.configurations import Placement
from planner.cost import hop_bytes
from planner.cuts.frozen_order import Moments, WorkMeter, counted, peaks
from planner.cuts.recompute_least import LeastRecompute, settled
from planner.cuts.stage_bytes import Sizes
from planner.schedule import Kind

KINDS = tuple(Kind)
COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)


@dataclass(frozen=True, kw_only=True)
class Durations:
    """The durations of a batch of cuts, with every message that any of the cuts has."""

    kinds: IntArray  # [cut, kind, stage]
    cells: IntArray  # of [act or grad, sender, receiver] laid flat, increasing
    hop_bytes: IntArray  # [cut, cell]
    hop_ns: IntArray


class GridKey(NamedTuple):
    """The key of a table over all intervals of layers: what it holds, of which layers, and what else it depends on."""

    what: Literal["sync", "step", "fixed", "moving", "again", "counted"]
    tables: Hashable
    depends_on: tuple[Hashable, ...]


@dataclass(frozen=True, kw_only=True)
class StageCosts(Sizes):
    """The bytes and nanoseconds of the stages of a configuration on its machines, for any boundaries."""

    mesh: Placement
    prefix_ns: IntArray  # [compute kind, stage, layers + 1]
    launch_ns: IntArray  # [compute kind]: of every action besides its layers
    update_ns: int  # of every update besides
    sums: tuple[Sum, ...]  # a stage
    parts: tuple[tuple[Sum, ...], ...]  # a table of `tables.parted` and a stage
    rows: tuple[Sum, ...]  # a stage: over replicas that share by element
    tie: Sum  # over every device, for parameters that several stages use
    latency_ns: FloatArray  # [stage, stage]
    byte_ns: FloatArray
    slowness: tuple[float, ...]  # a stage
    grids: dict[GridKey, IntArray]  # tables over all intervals, shared between problems
    meter: WorkMeter
    allowed: BoolArray  # the boundaries that a cut may have
    fixed: IntArray | None = None  # the cut, where the shape includes it
    least: LeastRecompute | None = None  # where only some stages recompute; `prefix_ns` is then without it
    bare: bool = False  # whether gradient sums and updates count nothing, as `pick.bare_ns` alone asks
    flagged: ClassVar[bool] = False  # whether a flag a stage follows the boundaries; see `recompute_choice`

    @property
    def moments(self) -> tuple[Moments, ...]:
        return self.order.moments

    @property
    def part_moments(self) -> tuple[IntArray, ...]:
        return self.order.part_moments

    def pointed(self, cut: IntArray, flag: int) -> IntArray:
        """Returns the point of a cut, with the same flag for every stage where stages have one."""
        return cut

    @property
    def width(self) -> int:
        """Returns the length of a point."""
        return self.stages * (2 if self.flagged else 1) + 1

    def bounds(self, points: IntArray) -> IntArray:
        """Returns the boundaries of points, without their flags.

        Args: `points` [..., width].
        """
        return points

    def bytes_of(self, cut: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the bytes of a cut's stages, as rows of `moments` count them.

        Returns: [stage] throughout a step, and [stage, part] of one micro-batch.
        """
        return self.fixed_bytes(cut[:-1], cut[1:]), self.moving_bytes(cut[:-1], cut[1:])

    def decided(self, low: IntArray, high: IntArray) -> list[tuple[int, Moments]]:
        """Returns the workers whose moments are not `moments` for any cut between two points, with their moments.

        Args: `low` and `high` are the points.
        """
        return []

    def redoes(self, flag: int) -> bool:
        """Tells whether `again_ns` says what recomputing takes; `flag` is the stage's."""
        return self.least is not None

    @cached_property
    def hosted(self) -> IntArray:
        """Returns [worker, stage]: how many pipes have the stage on the worker."""
        out: IntArray = np.zeros((self.schedule.workers, self.stages), np.int64)
        for pipe in self.schedule.place:
            np.add.at(out, (list(pipe), range(self.stages)), 1)
        return out

    @cached_property
    def available_bytes(self) -> IntArray:
        """Returns [worker]: memory less the margin."""
        return np.array(self.mesh.capacity_bytes, np.int64) - np.array(self.mesh.margin_bytes, np.int64)

    def memory(self, cuts: IntArray) -> IntArray:
        """Returns the bytes of each worker at its worst moment, without the margin.

        Args: `cuts` [cut, boundary].
        Returns: [cut, worker].
        """
        low, high = cuts[:, :-1], cuts[:, 1:]
        fixed: IntArray = self.fixed_bytes(low, high) @ self.hosted.T
        total: IntArray = fixed + peaks(self._counts, self.hosted, self.moving_bytes(low, high))
        if self.least is not None:
            moving = self.moving_of(low, high, np.False_)
            plain: IntArray = fixed + peaks(self._plain_counts, self.hosted, moving)
            total = np.where(plain <= self.available_bytes, plain, total)
            for p, worker in enumerate(self.hosted.argmax(0).tolist()):
                lacks = total[:, worker] - self.available_bytes[worker]
                more = self.least.parted_shortage(p, low[:, p], high[:, p], lacks)
                total[:, worker] = more + self.available_bytes[worker]
        return total

    @cached_property
    def _counts(self) -> list[FloatArray]:
        return counted(self.moments, self.hosted)

    @cached_property
    def _plain_counts(self) -> list[FloatArray]:
        assert self.least is not None
        return counted(self.least.plain.moments, self.hosted)

    def again_ns(self, stage: int, begins: IntArray, ends: IntArray) -> IntArray:
        """Returns the time of recomputing where only some stages do, over two rows of boundaries.

        Returns: [begin, end] nanoseconds.
        """
        least = self.least
        assert least is not None
        if self.layers > limits.TABLED_LAYERS:
            return least.redone_ns(stage, begins[:, None], np.maximum(ends[None, :], begins[:, None]))
        key = GridKey("again", self.tables.key, (least, stage))
        table = self._grid(key, lambda i, j: least.redone_ns(stage, i, j))
        return table[np.ix_(begins, ends)]

    def settled(self, cut: IntArray) -> Self:
        """Returns the problem with recomputation in the order only where this cut needs it.

        Args: `cut` is one row of boundaries.
        """
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
        for p, alike in [] if self.bare else self._alike:
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
        """Returns groups of stages whose sums and updates are priced alike, each behind its first stage."""
        found: dict[tuple[object, ...], list[int]] = {}
        for p, key in enumerate(zip(self.sums, self.slowness, *self.parts, strict=True)):
            found.setdefault(key, []).append(p)
        return [(alike[0], alike) for alike in found.values()]

    def sync_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        return self.own_sync_ns(stage, low, high) + self.tie.ns(self.tables.tied[low, high])

    def own_sync_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        """Returns the time to sum the gradients that no other stage uses; no less for a stage that has more layers.

        Returns: nanoseconds for each pair of boundaries.
        """
        tables = zip(self.parts, self.tables.parted.values(), strict=True)
        apart = sum((sums[stage].ns(table[low, high]) for sums, table in tables), np.int64(0))
        return self.sums[stage].ns(self.own_bytes(low, high)) + apart

    def step_ns(self, stage: int, low: IntArray, high: IntArray) -> IntArray:
        return self.handed_on_ns(stage, low, high, self.sync_ns(stage, low, high))

    def handed_on_ns(self, stage: int, low: IntArray, high: IntArray, sync_ns: IntArray) -> IntArray:
        """Returns the time of an update; parameters whose update is shared are handed round afterwards.

        Args: `sync_ns` is the time of the gradient sum, of which handing round takes half.
        """
        tables, slowness = self.tables, self.slowness[stage]
        updated_ns = self._updated(low, high) * (tables.step_ns_per_element * slowness)
        scattered_ns = tables.scattered[low, high] * (tables.scatter_ns_per_element * slowness)
        ns: IntArray = np.ceil(updated_ns + scattered_ns - NOISE).astype(np.int64)
        if self.shape.held == "gradients":
            sync_ns = self.rows[stage].ns(self.tables.gradients[low, high])
        return ns + (sync_ns + 1) // 2 * int(self.shape.hands_on) + self.update_ns

    def updates_sooner(self, other: StageCosts, known: dict[tuple[object, ...], bool]) -> bool:
        """Returns whether updates of some stage take less than in another problem; `known` keeps what was found."""
        kinds = {(other.sums[p], other.slowness[p]): p for p in range(other.stages)}
        key = (other.shape.micro, other.holders, other.tie, frozenset(kinds))
        if key not in known:
            pairs = ((self.step_grid(p), other.step_grid(p)) for p in kinds.values())
            known[key] = any(bool((a < b).any()) for a, b in pairs)
        return known[key]

    def sync_grid(self, stage: int) -> IntArray:
        """Returns `sync_ns` of every interval.

        Returns: [begin, end] nanoseconds.
        """
        sums = self.sums[stage], self.tie, *(each[stage] for each in self.parts)
        key = GridKey("sync", self.tables.key, sums)
        return self._grid(key, lambda i, j: self.sync_ns(stage, i, j))

    def step_grid(self, stage: int) -> IntArray:
        shared = (self.shape.sharing, self.sums[stage], self.tie, *self.rows[stage : stage + 1])
        key = GridKey("step", self.tables.key, (self.slowness[stage], *(shared * (self.shape.updaters > 1))))
        return self._grid(key, lambda i, j: self.step_ns(stage, i, j))

    @cached_property
    def fixed_grid(self) -> IntArray:
        return self._grid(
            GridKey("fixed", self.tables.key, (self.shape.sharing, self._throughout)), self.fixed_bytes
        )

    def moving_grid(self, stage: int, flag: int = 0) -> IntArray:
        return self._moving_grid(self._again[stage])

    @cached_property
    def plain_grid(self) -> IntArray:
        """Returns [begin, end, part]: the bytes of one micro-batch in a stage that does not recompute."""
        return self._moving_grid(np.False_)

    @cached_property
    def most_moving(self) -> IntArray:
        """Returns [part]: the most bytes of any stage."""
        grids = [self._moving_grid(again) for again in np.unique(self._again)]
        most: IntArray = np.max([grid.max((0, 1)) for grid in grids], 0)
        return most

    def _moving_grid(self, again: np.bool_) -> IntArray:
        key = GridKey("moving", self.tables.key, (self.shape.sharing, bool(again), self.order.owes))
        return self._grid(key, lambda i, j: self.moving_of(i, j, again))

    def _grid(self, key: GridKey, price: Callable[[IntArray, IntArray], IntArray]) -> IntArray:
        if key not in self.grids:
            if len(self.grids) >= limits.GRIDS:
                self.grids.clear()
            every = np.arange(self.layers + 1)
            self.grids[key] = price(every[:, None], np.maximum(every[None, :], every[:, None]))
        return self.grids[key]

    def _hop_ns(self, cells: IntArray, sizes: IntArray) -> IntArray:
        byte = np.stack([self.byte_ns, self.byte_ns.T]).ravel()[cells]
        latency = np.stack([self.latency_ns, self.latency_ns.T]).ravel()[cells]
        return np.where(sizes > 0, np.ceil(sizes * byte + latency - NOISE), 0).astype(np.int64)
