"""Units of a model's layers, whose parameters replicas gather, let go and sum together: their bytes in any stage.

Tables over intervals [i, j) of layers, each a candidate stage. A parameter that layers of several units use is a unit
of its own, which stays gathered from its first use to its last one. Here too is how bytes of layers become a table, and
those of two parts of a stage one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.model import ModelGraph
from planner.plan import StageShard, unit_names
from planner.simulate import StageBytes

Use = tuple[tuple[int, ...], int]  # of a parameter: all layers that use it, in order, and its bytes


class UnitsUntil(NamedTuple):
    """The bytes of units that are there while each layer runs, in all stages that end at one place.

    Layers before `since` have what they had in stages that end one layer earlier.
    """

    since: int
    summed: IntArray  # [i, layer from `since` on] of gradients
    coming: IntArray  # of parameters: those gathered, and those on their way
    gathered: IntArray  # of parameters and gradients, where both are shared


# Yields for each end of a stage a layer, and [i, layer from that on] what a work holds of units; None where it has none.
UnitsHeld = Callable[[], Iterator[tuple[int, IntArray]] | None]


@dataclass(frozen=True, eq=False)
class UnitTables:
    """The bytes of trained parameters by unit."""

    of_layer: IntArray  # [layer] number of its unit
    bytes: IntArray  # [unit] of the parameters that it alone uses
    share: FloatArray  # [layer] of its unit's bytes
    used: Sequence[Sequence[Use]]  # [layer]

    def held(self, part: Callable[[UnitsUntil], IntArray]) -> UnitsHeld:
        """Returns what a work holds of units, for each place where a stage may end.

        Args: `part` tells what it holds of what may be there.
        """
        return lambda: ((each.since, part(each)) for each in self.until())

    def until(self) -> Iterator[UnitsUntil]:
        """Yields what stages hold of units, for each place where they may end.

        A parameter that a stage uses in several units is there from its first use to its last one in the stage.
        """
        growing = _Growing(self.of_layer + 1)
        for at, rows in enumerate(self.used):
            since = growing.first(at, -1)
            for users, size in rows:
                since = min(since, growing.take(at, [user for user in users if user < at], size))
            yield growing.until(at, since)


class _Growing:
    """The bytes of units in stages that begin at i, while one layer more is taken into each of them."""

    def __init__(self, unit: IntArray) -> None:
        """Begins with no layers; `unit` has the number of each layer's, from 1 on."""
        self._unit, count = unit, len(unit)
        self._own, self._begun, self._ended = (
            np.zeros((count, count + 2), np.int64) for _ in range(3)
        )  # [i, unit]
        self._kept, self._added = (np.zeros((count, count), np.int64) for _ in range(2))  # [i, layer]

    def first(self, layer: int, beside: int = 0) -> int:
        """Returns the first layer of a layer's unit, or of the unit so many behind it."""
        return int(np.searchsorted(self._unit, self._unit[layer] + beside))

    def take(self, at: int, earlier: Sequence[int], size: int) -> int:
        """Takes a parameter that a new layer uses, and earlier ones; returns the first layer where that changes much."""
        unit, since = self._unit, at
        self._own[earlier[-1] + 1 if earlier else 0 : at + 1, unit[at]] += size
        for before, user in zip([-1, *earlier], earlier, strict=False):
            last, starts = earlier[-1], slice(before + 1, user + 1)
            if unit[user] == unit[at]:
                continue
            if unit[user] == unit[last]:  # it was of one unit until now
                self._own[starts, unit[user]] -= size
                self._begun[starts, unit[user]] += size
                self._added[starts, user] += size
                last, since = user - 1, min(since, self.first(user, -1))
            else:
                self._ended[starts, unit[last]] -= size
                since = min(since, self.first(last))
            self._ended[starts, unit[at]] += size
            self._kept[starts, last + 1 : at + 1] += size
        return since

    def until(self, at: int, since: int) -> UnitsUntil:
        """Returns what is there in stages that end behind a layer."""
        here, beside = self._unit[since : at + 1], slice(since, at + 1)
        mine, kept, added = self._own[:, here], self._kept[:, beside], self._added[:, beside]
        before = self._own[:, here - 1] + self._ended[:, here - 1]
        after = self._own[:, here + 1] + self._begun[:, here + 1]
        return UnitsUntil(
            since=since,
            summed=mine + after + added,
            coming=mine + before + kept,
            gathered=2 * mine + np.maximum(before, after) + kept + added,
        )


def unit_tables(graph: ModelGraph) -> UnitTables:
    """Returns the bytes of the units of a model.

    Args: `graph` has its layers in the order of the plan.
    """
    count = len(graph.layers)
    names = unit_names([layer.name for layer in graph.layers])
    number = {name: position for position, name in enumerate(dict.fromkeys(names))}
    of_layer = np.array([number[name] for name in names], np.int64)
    own = np.zeros(count, np.int64)  # by the first layer that uses a parameter
    used: list[list[Use]] = [[] for _ in range(count)]
    for row in graph.trained:
        users = tuple(sorted({graph.index[user] for user in row.users}))
        for user in users:
            used[user].append((users, row.bytes))
        if len({names[user] for user in users}) == 1:
            own[users[0]] += row.bytes
    sizes = np.bincount(of_layer, own, len(number)).astype(np.int64)
    return UnitTables(of_layer, sizes, own / np.maximum(sizes[of_layer], 1), used)


def nothing() -> None:
    """Returns what a work holds of units where each replica holds everything."""


class UnitBytes(NamedTuple):
    """The bytes of units that are there while each layer of one stage runs."""

    whole: list[int]  # in a whole backward
    first: list[int]  # in its halves
    second: list[int]
    forward: list[int]


def unit_bytes(graph: ModelGraph, layers: Sequence[str], shard: StageShard, walks: bool) -> UnitBytes:
    """Returns what replicas that share gradients or parameters hold of units, on top of their own parts.

    While a layer runs, that is its unit, its gradients, and the next unit or gradients of the last one. A parameter
    that several units of the stage use is there from its first use to its last. In a forward, gradients of the last
    backward may still be on their way. `UnitTables` has all stages at once.

    Args: `layers` are the names of the stage; `walks` tells whether its backward may be halved by a walk.
    """
    names = unit_names(layers, shard.unit)
    order = list(dict.fromkeys(names))
    unit = [order.index(name) + 1 for name in names]
    own, begun, ended = ([0] * (len(order) + 2) for _ in range(3))
    kept, added = [0] * len(layers), [0] * len(layers)
    for row in graph.trained:
        here = sorted({layers.index(user) for user in row.users if user in layers})
        if len({unit[user] for user in here}) > 1:
            for k in range(here[0], here[-1] + 1):
                kept[k] += row.bytes
            added[here[0]] += row.bytes
            begun[unit[here[0]]] += row.bytes
            ended[unit[here[-1]]] += row.bytes
        elif here:
            own[unit[here[0]]] += row.bytes
    found, of_all = UnitBytes([], [], [], []), shard.what == "parameters"
    for k, at in enumerate(unit):
        mine, before, after = own[at], own[at - 1] + ended[at - 1], own[at + 1] + begun[at + 1]
        summed, coming = mine + after + added[k], mine + before + kept[k]
        found.whole.append(2 * mine + max(before, after) + kept[k] + added[k] if of_all else summed)
        found.first.append(coming if of_all else 0)
        found.second.append(summed + coming if of_all and walks else summed)
    found.forward.extend(found.whole if of_all else [max(found.whole)] * len(layers))
    return found


_NO_LAYER = -(1 << 62)  # bytes; less than any layer of an interval takes


class Growth(NamedTuple):
    """Bytes that are there besides while some layers run, in stages that hold a layer."""

    holding: int  # the layer that a stage must hold
    starts: tuple[int, int]  # half-open: the first layers of the stages
    layers: tuple[int, int]  # half-open: those that run
    bytes: int

    def add_to(self, amounts: IntArray) -> None:
        """Adds the bytes to amounts `[i, layer]`, of stages that start at i."""
        amounts[slice(*self.starts), slice(*self.layers)] += self.bytes


def over_layers(
    amounts: IntArray,
    growing: Sequence[Growth] = (),
    units: Iterator[tuple[int, IntArray]] | None = None,
) -> IntArray:
    """Returns `[i, j]`, the most of amounts[i, l] over the layers l of a stage; 0 where there are no layers.

    Args: `growing` adds to the amounts, and is in the order of the layers that stages must hold. `units` yields for
        each end j of a stage what is there besides: a layer l, and [i, layer from l on]. Before the last two units of
        a stage that changes only where a parameter is used again.
    """
    count, left = len(amounts), list(reversed(growing))
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    amounts = np.where(np.tri(count, k=-1, dtype=np.bool_), _NO_LAYER, amounts)
    held, most, settled = np.zeros_like(amounts), np.full(count, _NO_LAYER), 0
    for j in range(1, count + 1):
        since = settled
        while left and left[-1].holding == j - 1:
            since = min(since, left[-1].layers[0])
            left.pop().add_to(amounts)
        changed = j - 1
        if units is not None:
            changed, more = next(units)
            held[:, changed:j] = more
        if changed < settled:  # it may be less now
            most[:], since = _NO_LAYER, 0
        during = amounts[:j, since:j] + held[:j, since:j]
        settled = max(since, changed)
        if settled > since:
            most[:j] = np.maximum(most[:j], during[:, : settled - since].max(1))
        table[:j, j] = np.maximum(most[:j], during[:, settled - since :].max(1))
    return table


def over_layers_waiting(
    amounts: IntArray,
    waits: Sequence[tuple[int, IntArray]],
    growing: Sequence[Growth] = (),
    units: UnitsHeld = nothing,
) -> IntArray:
    """Returns `over_layers` with what waits while a layer runs, which depends on where the stage ends."""
    table = over_layers(amounts, growing, units())
    for end, more in waits:
        table[:, end:] = over_layers(amounts + more, growing, units())[:, end:]
    return table


def running_maximum(amounts: IntArray) -> IntArray:
    """Returns `[i, j]`, the largest of the amounts from i to j - 1; 0 for empty intervals.

    Args: `amounts` has one number a layer.
    """
    count = len(amounts)
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for i in range(count):
        table[i, i + 1 :] = np.maximum.accumulate(amounts[i:])
    return table


def above_saved(amounts: IntArray, least: int = 0) -> IntArray:
    """Returns the amounts, at least `least`, of stages that have layers; 0 elsewhere."""
    return np.triu(np.maximum(amounts, least), 1)


def in_two(
    early: StageBytes, late: StageBytes, whole: StageBytes, *, passing: int, carried: int, copied: int
) -> StageBytes:
    """Joins the parts of a stage that recomputes its early layers and keeps what its late layers save.

    While the early layers run backwards, the late ones hold what their weights need, which may exceed what they
    saved.

    Args: `whole` is the stage as if it recomputed all layers. `passing` are the bytes that early layers make for
        other stages. `carried` are those of entering Values that late layers may read: their gradients are there
        while early layers run backwards. `copied` are the bytes of the early layers' buffers as their forward saw
        them.
    """
    apart = early.shared + late.shared - whole.shared
    return replace(
        whole,
        saved=early.saved + late.saved + apart + copied,
        held=early.held + late.held + copied,
        kept=early.kept + late.saved + apart + copied,
        workspace=max(_working(early) + 2 * carried, _working(late) + passing),
        reversing=0,
        splitting=max(early.splitting + max(0, late.held - late.saved), late.splitting),
        weighing=max(early.weighing, late.weighing),
    )


def _working(part: StageBytes) -> int:
    return part.workspace + part.reversing
