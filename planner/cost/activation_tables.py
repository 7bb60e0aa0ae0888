"""Computes for every stage at once what one micro-batch takes in it; agrees with `stage_bytes` to the byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cost.shared_weights import (
    Rectangles,
    arriving_at_made,
    early_table,
    reused,
    reused_values,
    summed_tables,
    waiting_from,
    weighing,
)
from planner.cost.stage_bytes import LEAF_BYTES, LOOK_BYTES
from planner.cost.unit_tables import (
    Growth,
    UnitsHeld,
    above_saved,
    nothing,
    over_layers,
    over_layers_waiting,
)
from planner.cost.values import forward_amounts, forward_workspaces, neighbour_tables, passing_tables
from planner.model import ModelGraph
from planner.profile import LayerCost, storages


@dataclass(frozen=True, kw_only=True)
class HalvesBytes:
    """Bytes of stages by how their backward is halved, named as in StageBytes; `[i, j]` is the stage of layers i to
    j - 1.
    """

    held: IntArray
    splitting: IntArray
    weighing: IntArray


@dataclass(frozen=True, kw_only=True)
class Moving(HalvesBytes):
    """Bytes that one micro-batch takes in each stage, named as in StageBytes."""

    workspace: IntArray
    reversing: IntArray
    shared: IntArray
    arriving: IntArray
    near: IntArray
    crossing: IntArray
    sent: IntArray
    handed: IntArray
    following: IntArray  # `handed` of stages that recompute, which includes what the stage keeps
    carried: IntArray  # [i, k] differentiable Values from before i that are read from k on
    returning: IntArray
    back: IntArray
    far: IntArray


@dataclass(frozen=True, kw_only=True)
class Walking:
    """The bytes of stages whose backward is halved, by a walk through the graph or by what layers store."""

    stages: BoolArray  # stages with a layer that needs a walk
    stored: HalvesBytes  # as if no stage walked
    halves: HalvesBytes  # as if every stage walked

    @cached_property
    def chosen(self) -> HalvesBytes:
        """Returns the halves' bytes as each stage runs: walked where a layer needs that, else stored."""
        stored = self.stored
        return HalvesBytes(
            held=np.where(self.stages, self.halves.held, stored.held),
            splitting=np.where(self.stages, self.halves.splitting, stored.splitting),
            weighing=np.where(self.stages, self.halves.weighing, stored.weighing),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Working:
    """The bytes while each layer of a stage runs, from which its workspace follows, and what its halves take."""

    graph: ModelGraph
    costs: Sequence[LayerCost]
    size_of: Mapping[str, int]
    saved: IntArray  # [i, j]
    entered: IntArray  # [i, j]
    told: IntArray  # [j] gradients of the loss
    returning: IntArray  # [i, j]
    on_top: IntArray  # [i, layer] what passes by a layer, and its own workspace
    waits: Sequence[tuple[int, IntArray]]
    early: Sequence[Growth]
    forwards: (
        tuple[IntArray, Sequence[Growth]] | None
    )  # as `forward_amounts` has them; None: as much as backwards

    def most(self, units: UnitsHeld = nothing) -> IntArray:
        """Returns [i, j] the bytes on top of what is saved at the moment of the highest use, with `units` besides."""
        during = over_layers_waiting(self._during, self.waits, self.early, units)
        return above_saved(self.entered + self.told - self.saved + during, LOOK_BYTES)

    def forward(self, most: IntArray, units: UnitsHeld = nothing, left: UnitsHeld = nothing) -> IntArray:
        """Returns [i, j] the part of `most` that is there in a forward, with `units` besides.

        Args: the most that `left` has in any layer is there throughout.
        """
        if self.forwards is None:
            return most
        amounts, growing = self.forwards
        during = over_layers(self._kept + amounts, growing, units())
        if left is not nothing:
            during = during + over_layers(np.zeros_like(self.on_top), (), left())
        return np.minimum(above_saved(self.entered - self.saved + during, LOOK_BYTES), most)

    @property
    def _kept(self) -> IntArray:
        """Returns [i, layer] what is saved up to a layer, without what enters the stage."""
        return self.saved[:-1, 1:] - self.entered[:-1, 1:]

    @property
    def _during(self) -> IntArray:
        return self._kept + self.on_top

    def halves(self, workspace: IntArray, *units: UnitsHeld) -> Walking:
        """Returns what stages hold whose backward is in halves.

        Args: `workspace` [i, j] is of whole backwards; `units` are there in the first half, the second, and in a walk.
        """
        first, second, in_walk = units
        held = _sums([cost.held_bytes for cost in self.costs])
        work = np.array([cost.workspace_bytes for cost in self.costs], np.int64)
        halved = over_layers(self._during - held[1:], self.early, first())
        weighed = over_layers(np.broadcast_to(held[1:] + work, self.on_top.shape), (), second()) - held
        stored = HalvesBytes(
            held=np.triu(held - held[:, None], 1),
            splitting=above_saved(self.entered + self.told + held + halved - self.saved - workspace),
            weighing=above_saved(weighed - workspace),
        )
        walks = _sums([cost.walks for cost in self.costs])
        stages = np.triu(walks > walks[:, None], 1)
        halves = self._walked(workspace, first, in_walk) if stages.any() else stored
        return Walking(stages=stages, stored=stored, halves=halves)

    def shared(
        self, whole: UnitsHeld, *halves: UnitsHeld, forwards: tuple[UnitsHeld, UnitsHeld] = (nothing, nothing)
    ) -> tuple[IntArray, IntArray, Walking]:
        """Returns `forward`, what `most` has besides, and `halves`.

        Args: each has the units that are there in whole backwards, in halves, and as `forward` has them.
        """
        most = self.most(whole)
        forward = self.forward(most, *forwards)
        return forward, most - forward, self.halves(most, *halves)

    def _walked(self, workspace: IntArray, first: UnitsHeld, second: UnitsHeld) -> HalvesBytes:
        graph, size_of, count = self.graph, self.size_of, len(self.costs)
        made, reuses = arriving_at_made(graph, size_of), reused(graph)
        walked = _sums([cost.walked_bytes + more for cost, more in zip(self.costs, made, strict=True)])
        last, entered = _after_weights(graph), _differentiable(graph)
        at_first = self.told + over_layers(self.on_top - walked[1:], self.early, first()) + walked
        at_second = self.told + over_layers(self.on_top, (), second())
        below = np.take_along_axis(self.saved, np.broadcast_to(last, self.saved.shape), 1)
        below[last[None, :] <= np.arange(len(last))[:, None]] = 0
        soon = early_table(reuses, count)
        below += walked - walked[:, None] + soon
        at_once = over_layers_waiting(np.zeros_like(self.on_top), waiting_from(reuses, count))
        at_end = summed_tables([*reuses, *reused_values(graph, size_of)], count)
        alone = self.saved + self.returning + self.told
        begun = np.where(entered, at_first + 2 * soon, self.told + over_layers(self.on_top, (), first()))
        return HalvesBytes(
            held=np.triu(LEAF_BYTES + np.where(entered, below, alone), 1),
            splitting=above_saved(LEAF_BYTES + begun - workspace),
            weighing=above_saved(at_second + np.where(entered, at_end, at_once) - workspace),
        )


def moving(
    graph: ModelGraph,
    costs: Sequence[LayerCost],
    size_of: Mapping[str, int],
    *,
    saved: IntArray,
    entered: IntArray,
) -> tuple[Moving, Walking, Working]:
    """Returns the tables of StageBytes that follow from Values and costs, those of stages that walk, and working bytes.

    Args: `costs` has one row a layer, `size_of` the bytes of every Value. `saved` and `entered` are `[i, j]` as in
        Tables.
    """
    messages = passing_tables(graph, costs, size_of)
    arriving, sent, returning, far, passing = (rectangles.table for rectangles in messages)
    tables = (rectangles.table for rectangles in neighbour_tables(graph, costs, size_of))
    shared, near, crossing, handed, following, back, carried = tables
    work = np.array([cost.workspace_bytes for cost in costs], np.int64)
    forwards, keepers = forward_workspaces(costs), storages(graph, costs).keepers()
    told: IntArray = np.zeros(len(costs) + 1, np.int64)
    told[-1] = sum(size_of[name] for name in graph.layers[-1].outputs)
    working = Working(
        graph=graph,
        costs=costs,
        size_of=size_of,
        saved=saved,
        entered=entered,
        told=told,
        returning=returning,
        on_top=passing[:-1, :-1] + work,
        waits=waiting_from(reused(graph), len(costs)),
        early=_early(graph, size_of),
        forwards=None if forwards is None else forward_amounts(graph, keepers, size_of, forwards),
    )
    workspace, reversing, walking = working.shared(nothing, nothing, nothing, nothing)
    return (
        Moving(
            **vars(walking.chosen),
            workspace=workspace,
            reversing=reversing,
            shared=shared,
            arriving=arriving - near,
            near=near,
            crossing=np.triu(crossing, 1),
            sent=sent - handed,
            handed=handed,
            following=following,
            carried=carried,
            returning=returning - back,
            back=back,
            far=far,
        ),
        walking,
        working,
    )


def in_passes(forward: IntArray, reversing: IntArray, again: BoolArray | np.bool_) -> dict[str, IntArray]:
    """Returns what stages take in any pass and what only backwards take, by name; all of it where they recompute.

    Args: `forward` and `reversing` are bytes of stages, and `again` tells which of them recompute.
    """
    return {
        "workspace": forward + np.where(again, reversing, 0),
        "reversing": np.where(again, 0, reversing),
    }


def _after_weights(graph: ModelGraph) -> IntArray:
    """Returns by j the position behind the last layer before j in which a weight half has something to do."""
    at = [i + 1 if weighs else 0 for i, weighs in enumerate(weighing(graph))]
    found: IntArray = np.maximum.accumulate(np.array([0, *at], np.int64))
    return found


def _differentiable(graph: ModelGraph) -> BoolArray:
    """Returns for each stage [i, j] whether a gradient goes on to the stages before."""
    entered = Rectangles(len(graph.layers))
    for value in graph.values:
        if value.producer and value.needs_grad:
            users = sorted(graph.index[name] for name in set(value.consumers))
            entered.add_once(users, 1, after=graph.index[value.producer])
    found: BoolArray = entered.table > 0
    return found


def _sums(amounts: Sequence[int]) -> IntArray:
    found: IntArray = np.concatenate([[0], np.cumsum(np.array(amounts, np.int64))])
    return found


def _early(graph: ModelGraph, size_of: Mapping[str, int]) -> list[Growth]:
    """Returns the gradients by late readers of Values that enter: there while earlier layers run backwards, and once
    more while one is added to that of an earlier reader.
    """
    found = []
    for value in graph.values:
        if value.producer and value.needs_grad:
            made, size = graph.index[value.producer], size_of[value.name]
            users = sorted(graph.index[name] for name in set(value.consumers))
            for before, user in zip([made, *users], users, strict=False):
                if user > made + 1:
                    found.append(Growth(user, (made + 1, user), (before, user), size))
                if before > made:
                    found.append(Growth(user, (made + 1, user), (before, before + 1), size))
    return sorted(found, key=lambda each: each.holding)
