"""Bytes of the stages of a shape, each seen alone, for any boundaries; everything is evaluated for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cluster import NOISE
from planner.configurations import Configuration
from planner.cost import (
    Owned,
    Rectangles,
    Tables,
    copies_of_statistics,
    in_passes,
    losses_held,
    running_maximum,
)
from planner.cuts.frozen_order import Order
from planner.layout import Mesh
from planner.schedule import Schedule
from planner.simulate import PART_NAMES, SQUARE_BYTES, SQUARED_ELEMENTS


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The bytes of the stages of a configuration, for any boundaries."""

    shape: Configuration
    tables: Tables
    order: Order
    until: IntArray | None = None  # [stage]: where what it recomputes ends, once that is settled
    # The only cuts asked for: 0 is where all neighbours talk, p where stage p is the first that does not talk with the
    # one before it. None is all cuts.
    silent: int | None = None

    @property
    def schedule(self) -> Schedule:
        return self.order.schedule

    @property
    def stages(self) -> int:
        return self.shape.stages

    @property
    def layers(self) -> int:
        return self.tables.layers

    @property
    def holders(self) -> int:
        return self.shape.holders

    @cached_property
    def chained(self) -> bool:
        """Returns whether every stage waits for the one before it and on its way back for the next, in all cuts asked
        for.
        """
        return self.silent == 0 or not self.apart or self.tables.talk.always(self.stages)

    @cached_property
    def apart(self) -> list[int]:
        """Returns the boundaries whose stages lie on different workers; on one worker its order has them wait."""
        place = np.array(self.order.schedule.place)
        found: list[int] = (np.flatnonzero((place[:, 1:] != place[:, :-1]).any(0)) + 1).tolist()
        return found

    def talk_at(self, boundary: int) -> bool:
        """Returns whether the stages beside a boundary wait for each other in all cuts asked for."""
        return (
            self.chained or boundary not in self.apart or (self.silent is not None and boundary < self.silent)
        )

    def fixed_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes that a stage holds throughout a step in one pipe: its state and what lies beside it.

        Args: `low` and `high` are boundaries: layers low .. high - 1.
        """
        tables, (losses, copies) = self.tables, self._throughout
        held = self.parameter_bytes(low, high) + self.gradient_bytes(low, high) + self.state_bytes(low, high)
        return held + tables.step_bytes(low, high, losses=losses, copies=copies)

    def parameter_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes of parameters, their averages and buffers that a rank holds between their uses."""
        every, trained = self.tables.parameters[low, high], self.tables.gradients[low, high]
        own = self.gradient_bytes(low, high)
        if self.shape.held == "parameters":
            every = every - trained + own
        return every + own if self.tables.averaged else every

    def own_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes of gradients that no other stage uses, for each pair of boundaries."""
        own: IntArray = self.tables.summed[low, high] - self.tables.tied[low, high]
        return own

    def gradient_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes of gradients that a rank holds throughout a step."""
        every = self.tables.gradients[low, high]
        return self._part(every) if self.shape.held else every

    def _part(self, size: IntArray) -> IntArray:
        return -(-size // self.shape.ranks)

    @cached_property
    def _throughout(self) -> tuple[int, int]:
        """Returns the losses of a pipe, and the copies of running statistics; of all stages where any may recompute."""
        again = self.shape.sparing or bool(self.order.recomputing)
        return losses_held(self.schedule), copies_of_statistics(self.holders, recompute=again)

    def state_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        tables = self.tables
        counters = tables.trained[low, high] * tables.state_bytes_per_tensor
        state = self._updated(low, high) * tables.state_bytes_per_element + counters
        size: IntArray = np.ceil(state - NOISE).astype(np.int64)
        return size

    def _updated(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the elements that the busiest holder of a stage updates: shared state is dealt out by whole parameters."""
        every = self.tables.elements[low, high]
        if self.shape.held:
            return self._part(every)
        if not self.shape.shard:
            return every
        return most_updated(self.tables.owned, self.layers, self.holders, self.shape.mesh)[low, high]

    def moving_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes of one micro-batch in each stage, which recomputes as the order has it.

        Returns: [..., stage, part].
        """
        moving = self.moving_of(low, high, self._again)
        if self.until is not None:
            some = np.broadcast_to((low < self.until) & (self.until < high), moving.shape[:-1])
            middle = np.broadcast_to(self.until, low.shape)
            moving[some] = self.moving_in_two(low[some], middle[some], high[some])
        return moving

    def moving_in_two(self, low: IntArray, middle: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes of one micro-batch in stages that recompute their layers before `middle`.

        Returns: [..., part]; see `planner.cost.unit_tables.in_two`.
        """
        walks = self.tables.walking.stages[low, high]
        early, late = (self._walking_of(*part, walks) for part in ((low, middle), (middle, high)))
        whole = self.moving_of(low, high, np.True_)
        passing = self.tables.leaving[low, high] - self.tables.leaving[middle, high]
        at = {name: part for part, name in enumerate(PART_NAMES)}
        apart = early[..., at["shared"]] + late[..., at["shared"]] - whole[..., at["shared"]]
        copied = self.tables.remembered[low, middle]
        whole[..., at["saved"]] = early[..., at["saved"]] + late[..., at["saved"]] + apart + copied
        whole[..., at["held"]] = early[..., at["held"]] + late[..., at["held"]] + copied
        whole[..., at["kept"]] = early[..., at["kept"]] + late[..., at["saved"]] + apart + copied
        both, carried = [at["workspace"], at["reversing"]], 2 * self.tables.moving.carried[low, middle]
        work = np.maximum(early[..., both].sum(-1) + carried, late[..., both].sum(-1) + passing)
        whole[..., both[0]], whole[..., both[1]] = work, 0
        first, second = at["splitting"], at["weighing"]
        more = np.maximum(late[..., at["held"]] - late[..., at["saved"]], 0)
        whole[..., first] = np.maximum(early[..., first] + more, late[..., first])
        whole[..., second] = np.maximum(early[..., second], late[..., second])
        return whole

    def _walking_of(self, low: IntArray, high: IntArray, walks: BoolArray) -> IntArray:
        """Returns [..., part] of a part of a stage that recomputes nothing, where some of the stages walk."""
        found, held = self.moving_of(low, high, np.False_), self.shape.held
        walked = (self.tables.with_units[held][2] if held else self.tables.walking).halves
        for part, name in enumerate(PART_NAMES):
            if name in ("held", "splitting", "weighing"):
                found[..., part] = np.where(walks, getattr(walked, name)[low, high], found[..., part])
        return found

    @cached_property
    def _again(self) -> BoolArray:
        """Returns [stage]: whether the order recomputes the stage."""
        return np.isin(np.arange(self.stages), list(self.order.recomputing))

    def moving_of(self, low: IntArray, high: IntArray, again: BoolArray | np.bool_) -> IntArray:
        """Returns the bytes of one micro-batch in a stage; a stage that recomputes counts its sent activations in full.

        Args: `again` tells whether the stage recomputes.
        Returns: [..., part], the parts of `StageBytes`.
        """
        tables = self.tables
        parts = tables.moving_parts(low, high, again) | {"update": self.update_bytes(low, high)}
        if self.shape.held:
            workspace, reversing, walking = tables.with_units[self.shape.held]
            parts |= in_passes(workspace[low, high], reversing[low, high], again)
            chosen = walking.chosen
            parts["splitting"], parts["weighing"] = chosen.splitting[low, high], chosen.weighing[low, high]
        parts["workspace"] = parts["workspace"] + tables.dropped[low, high]
        if self.order.owes:
            parts["saved"] = parts["saved"] + tables.owing[high] - tables.owing[low]
        return np.stack([parts[name] for name in PART_NAMES], -1)

    def update_bytes(self, low: IntArray, high: IntArray) -> IntArray:
        """Returns the bytes on top while the busiest holder of a stage updates its share, or squares all of its gradients.

        Args: `low` and `high` are boundaries: layers low .. high - 1.
        """
        tables, updated = self.tables, self._updated(low, high)
        largest = np.minimum(tables.largest[low, high], updated)
        rates = tables.largest_bytes_per_element, tables.other_bytes_per_element
        size: IntArray = np.round(rates[0] * largest + rates[1] * (updated - largest)).astype(np.int64)
        squared = SQUARE_BYTES * np.minimum(tables.largest[low, high], SQUARED_ELEMENTS)
        found: IntArray = np.maximum(size, squared)
        return found


def updated_before(tables: Tables, shape: Configuration) -> IntArray:
    """Returns the trained elements before each boundary: by their first layer, or by their last where one stage has
    their state.
    """
    found: IntArray = np.zeros(tables.layers + 1, np.int64)
    for row in tables.owned:
        found[row.users[-1] + 1] += row.elements
    before: IntArray = np.cumsum(found) if shape.shard else tables.elements[0]
    return before


def updated_alone(tables: Tables, shape: Configuration) -> IntArray:
    """Returns the trained elements that each layer brings to the update of its stage at least."""
    each = np.arange(tables.layers)
    found: IntArray = (
        np.diff(updated_before(tables, shape)) if shape.shard else tables.elements[each, each + 1]
    )
    return found


MOST_HOLDERS = 32  # that are looked at one by one; of more, nearly all updates are the largest parameter's


@lru_cache(maxsize=64)
def most_updated(rows: tuple[Owned, ...], layers: int, holders: int, mesh: Mesh = ()) -> IntArray:
    """Returns [i, j] the most elements that one of a stage's holders updates, where each parameter has one owner.

    Args: `rows` are the trained parameters as they are dealt out. What an earlier stage holds too is owned here, and
        counts whole. Of what a group cuts, which is a `mesh`, those who have the same part are holders.
    """
    table = Rectangles(layers)
    for row in rows:
        begins, behind = row.users[0] + 1, row.users[-1] + 1
        table.add((begins, behind), (behind, layers + 1), row.elements)
    found = table.table
    for dtype, axes in sorted({(row.dtype, row.axes) for row in rows}):
        own = [row for row in rows if (row.dtype, row.axes) == (dtype, axes)]
        same = holders // prod(mesh[axis] for axis in axes)
        found = found + (_dealt if same <= MOST_HOLDERS else _at_most)(own, layers, same)
    return found


def _around(row: Owned, layers: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the stages that have all uses of a parameter."""
    return (0, row.users[0] + 1), (row.users[-1] + 1, layers + 1)


def _at_most(rows: Sequence[Owned], layers: int, holders: int) -> IntArray:
    """Returns [i, j] an even share of what a stage alone has, and its largest parameter."""
    table, largest = Rectangles(layers), np.zeros(layers, np.int64)
    for row in rows:
        table.add(*_around(row, layers), row.elements)
        largest[list(row.users)] = np.maximum(largest[list(row.users)], row.elements)
    own = table.table
    found: IntArray = np.minimum(own, -(-own // holders) + running_maximum(largest))
    return found


def _dealt(rows: Sequence[Owned], layers: int, holders: int) -> IntArray:
    """Returns [i, j] the most elements of what a stage alone has that one holder updates; see `planner.plan.owners`."""
    found: IntArray = np.zeros((layers + 1, layers + 1), np.int64)
    first, last = (np.array([row.users[at] for row in rows]) for at in (0, -1))
    sizes, several = np.array([row.elements for row in rows], np.int64), first < last
    begins, ends = ([0, *sorted({int(x) + 1 for x in at[several]}), layers + 1] for at in (first, last))
    for (i0, i1), (j0, j1) in product(pairwise(begins), pairwise(ends)):
        inside = ~several | (first >= i0) & (last < j0)  # of all stages that begin and end here
        before = np.concatenate([[0], sizes[inside].cumsum()])
        low = np.searchsorted(first[inside], np.arange(i0, i1))[:, None]
        high = np.maximum(low, np.searchsorted(first[inside], np.arange(j0, j1)))
        middles, cut = before[:-1] + sizes[inside] // 2, np.broadcast_to(low, high.shape)
        for holder in range(1, holders + 1):
            upto = before[low] - (before[low] - before[high]) * holder // holders  # rounded up
            after = np.clip(np.searchsorted(middles, upto), low, high) if holder < holders else high
            found[i0:i1, j0:j1] = np.maximum(found[i0:i1, j0:j1], before[after] - before[cut])
            cut = after
    return found
