"""Units of a model's layers, whose parameters replicas gather, let go and sum together: their bytes in any stage.

Tables over intervals [i, j) of layers, each a candidate stage. A parameter that layers of several units use is a unit
of its own, which stays gathered from its first use to its last one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.model import ModelGraph
from planner.plan import unit_names


class UnitTables(NamedTuple):
    """The bytes of trained parameters by unit."""

    of_layer: IntArray  # [layer] number of its unit
    bytes: IntArray  # [unit] of the parameters that it alone uses
    share: FloatArray  # [layer] of its unit's bytes
    pair: IntArray  # [i, j] the most bytes of two neighbouring units within the stage
    wide: IntArray  # [i, j] bytes of parameters that several units within the stage use


def unit_tables(graph: ModelGraph) -> UnitTables:
    """Returns the bytes of the units of a model.

    Args: `graph` has its layers in the order of the plan.
    """
    count = len(graph.layers)
    names = unit_names([layer.name for layer in graph.layers])
    number = {name: position for position, name in enumerate(dict.fromkeys(names))}
    of_layer = np.array([number[name] for name in names], np.int64)
    own = np.zeros(count, np.int64)  # by the first layer that uses a parameter
    several: list[tuple[list[int], int]] = []
    for row in graph.trained:
        users = sorted({graph.index[user] for user in row.users})
        if len({names[user] for user in users}) > 1:
            several.append((users, row.bytes))
        elif users:
            own[users[0]] += row.bytes
    sizes = np.bincount(of_layer, own, len(number)).astype(np.int64)
    share = own / np.maximum(sizes[of_layer], 1)
    return UnitTables(of_layer, sizes, share, _pairs(own, of_layer), _wide(several, of_layer))


def _pairs(own: IntArray, of_layer: IntArray) -> IntArray:
    count = len(own)
    out: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for i in range(count):
        before = now = most = 0
        for j in range(i, count):
            if j > i and of_layer[j] != of_layer[j - 1]:
                before, now = now, 0
            now += int(own[j])
            most = max(most, before + now)
            out[i, j + 1] = most
    return out


def _wide(several: list[tuple[list[int], int]], of_layer: IntArray) -> IntArray:
    count = len(of_layer)
    out: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for users, size in several:
        for i in range(count):
            end = next((user for user in users if user >= i), None)
            if end is not None:
                out[i, end + 1 :] += size
    return out
