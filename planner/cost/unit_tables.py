"""Units of a model's layers, whose parameters replicas gather, let go and sum together: their bytes in any stage.

Tables over intervals [i, j) of layers, each a candidate stage. A parameter that layers of several units use is a unit
of its own, which stays gathered from its first use to its last one. Here too is how bytes of layers become a table, and
those of two parts of a stage one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.model import ModelGraph
from planner.plan import StageShard, unit_names
from planner.simulate import StageBytes


class UnitTables(NamedTuple):
    """The bytes of trained parameters by unit."""

    of_layer: IntArray  # [layer] number of its unit
    bytes: IntArray  # [unit] of the parameters that it alone uses
    share: FloatArray  # [layer] of its unit's bytes
    summed: IntArray  # [i, layer] of gradients, while a layer of a stage from i on runs
    coming: IntArray  # [i, layer] of parameters: those gathered, and those on their way
    gathered: IntArray  # [i, layer] of parameters and gradients, where both are shared


def unit_tables(graph: ModelGraph) -> UnitTables:
    """Returns the bytes of the units of a model.

    Args: `graph` has its layers in the order of the plan.
    """
    count = len(graph.layers)
    names = unit_names([layer.name for layer in graph.layers])
    number = {name: position for position, name in enumerate(dict.fromkeys(names))}
    of_layer = np.array([number[name] for name in names], np.int64)
    own = np.zeros(count, np.int64)  # by the first layer that uses a parameter
    again: list[tuple[list[int], int]] = []  # parameters that several layers of a unit use
    several: list[tuple[list[int], int]] = []
    for row in graph.trained:
        users = sorted({graph.index[user] for user in row.users})
        if len({names[user] for user in users}) > 1:
            several.append((users, row.bytes))
        elif users:
            own[users[0]] += row.bytes
            again += [(users, row.bytes)] if len(users) > 1 else []
    sizes = np.bincount(of_layer, own, len(number)).astype(np.int64)
    share = own / np.maximum(sizes[of_layer], 1)
    here = np.array([_of_stage(own, again, of_layer, i) for i in range(count)]).reshape(count, 3, count)
    own_unit, before, after = here[:, 0], here[:, 1], here[:, 2]
    kept, added = _of_several(several, count)
    return UnitTables(
        of_layer,
        sizes,
        share,
        own_unit + after + added,
        own_unit + before + kept,
        2 * own_unit + np.maximum(before, after) + kept + added,
    )


class UnitBytes(NamedTuple):
    """The bytes of units that are there while each layer of one stage runs."""

    whole: list[int]  # in a forward or a whole backward
    first: list[int]  # in the halves of a backward
    second: list[int]


def unit_bytes(graph: ModelGraph, layers: Sequence[str], shard: StageShard, walks: bool) -> UnitBytes:
    """Returns what replicas that share gradients or parameters hold of units, on top of their own parts.

    While a layer runs, that is its unit, its gradients, and the next unit or gradients of the last one. A unit is taken
    as it is up to the end of the model: a stage that ends within it holds less. `unit_tables` has all stages at once.

    Args: `layers` are the names of the stage; `walks` tells whether its backward may be halved by a walk.
    """
    every = [layer.name for layer in graph.layers]
    unit = dict(zip(every, unit_names(every, shard.unit), strict=True))
    later = every[every.index(layers[0]) :]
    order = list(dict.fromkeys(unit[name] for name in later))
    own, kept, added = dict.fromkeys(order, 0), [0] * len(later), [0] * len(later)
    for row in graph.trained:
        here = sorted({later.index(user) for user in row.users if user in later})
        if here and len({unit[user] for user in row.users}) > 1:
            for k in range(here[0], here[-1] + 1):
                kept[k] += row.bytes
            added[here[0]] += row.bytes
        elif here:
            own[unit[row.users[0]]] += row.bytes
    found = UnitBytes([], [], [])
    for k, name in enumerate(layers):
        at, mine = order.index(unit[name]), own[unit[name]]
        before = own[order[at - 1]] if at else 0
        after = own[order[at + 1]] if at + 1 < len(order) else 0
        summed, coming = mine + after + added[k], mine + before + kept[k]
        gathered = 2 * mine + max(before, after) + kept[k] + added[k]
        of_all = shard.what == "parameters"
        found.whole.append(gathered if of_all else summed)
        found.first.append(coming if of_all else 0)
        found.second.append(summed + coming if of_all and walks else summed)
    return found


def _of_stage(
    own: IntArray, again: Sequence[tuple[list[int], int]], of_layer: IntArray, first: int
) -> IntArray:
    """Returns [3, layer]: the bytes of each layer's unit in a stage from a layer on, of the unit before and after."""
    here = np.where(np.arange(len(own)) >= first, own, 0)
    for users, size in again:  # where the first of its layers is in a stage before
        here[users[-1]] += size if users[0] < first <= users[-1] else 0
    sizes = np.bincount(of_layer, here, int(of_layer[-1]) + 1).astype(np.int64)
    padded = np.concatenate([[0], sizes, [0]])
    return np.array([padded[of_layer + 1], padded[of_layer], padded[of_layer + 2]])


def _of_several(several: list[tuple[list[int], int]], count: int) -> tuple[IntArray, IntArray]:
    """Returns [i, layer] the bytes of parameters of several units between their uses, and of their gradients at last."""
    kept, added = np.zeros((count, count), np.int64), np.zeros((count, count), np.int64)
    for users, size in several:
        for i in range(users[-1] + 1):
            begins = next(user for user in users if user >= i)
            kept[i, begins : users[-1] + 1] += size
            added[i, begins] += size
    return kept, added


_NO_LAYER = -(1 << 62)  # bytes; less than any layer of an interval takes


class EarlyGradient(NamedTuple):
    """The gradient by a late reader of a Value that enters: there while earlier layers run backwards, and once more
    while it is added to that of an earlier reader.
    """

    made: int
    before: int  # the reader before, or where it was made
    reader: int
    bytes: int

    def add_to(self, amounts: IntArray) -> None:
        """Adds the gradient to amounts `[i, layer]`, for stages that start at i and hold the reader."""
        first = self.made + 1
        at, layers = np.arange(first, self.reader)[:, None], np.arange(self.before, self.reader)[None, :]
        more = np.where(layers == self.before, 2 if self.before > self.made else 1, 1) * self.bytes
        amounts[first : self.reader, self.before : self.reader] += np.where(layers >= at, more, 0)


def over_layers(amounts: IntArray, early: Sequence[EarlyGradient] = ()) -> IntArray:
    """Returns `[i, j]`, the most of amounts[i, l] over the layers l of a stage; 0 where there are no layers."""
    count, left = len(amounts), list(reversed(early))
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    amounts = np.where(np.tri(count, k=-1, dtype=np.bool_), _NO_LAYER, amounts)
    most = np.full(count, _NO_LAYER)
    for j in range(1, count + 1):
        since = j - 1
        while left and left[-1].reader == j - 1:
            since = min(since, left[-1].before)
            left.pop().add_to(amounts)
        most[:j] = np.maximum(most[:j], amounts[:j, since:j].max(1))
        table[:j, j] = most[:j]
    return table


def over_layers_waiting(
    amounts: IntArray, waits: Sequence[tuple[int, IntArray]], early: Sequence[EarlyGradient] = ()
) -> IntArray:
    """Returns `over_layers` with what waits while a layer runs, which depends on where the stage ends."""
    table = over_layers(amounts, early)
    for end, more in waits:
        table[:, end:] = over_layers(amounts + more, early)[:, end:]
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
        workspace=max(early.workspace + 2 * carried, late.workspace + passing),
        splitting=max(early.splitting + max(0, late.held - late.saved), late.splitting),
        weighing=max(early.weighing, late.weighing),
    )
