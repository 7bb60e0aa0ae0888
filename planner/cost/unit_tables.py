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
    summed: IntArray  # [i, layer] of gradients, while a layer of a stage from i on runs
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
    several: list[tuple[list[int], int]] = []
    for row in graph.trained:
        users = sorted({graph.index[user] for user in row.users})
        if len({names[user] for user in users}) > 1:
            several.append((users, row.bytes))
        elif users:
            own[users[0]] += row.bytes
    sizes = np.bincount(of_layer, own, len(number)).astype(np.int64)
    share = own / np.maximum(sizes[of_layer], 1)
    here = np.array([_of_stage(own, of_layer, i) for i in range(count)]).reshape(count, 3, count)
    own_unit, before, after = here[:, 0], here[:, 1], here[:, 2]
    kept, added = _of_several(several, count)
    return UnitTables(
        of_layer,
        sizes,
        share,
        own_unit + after + added,
        2 * own_unit + np.maximum(before, after) + kept + added,
    )


def _of_stage(own: IntArray, of_layer: IntArray, first: int) -> IntArray:
    """Returns [3, layer]: the bytes of each layer's unit in a stage from a layer on, of the unit before and after."""
    here = np.where(np.arange(len(own)) >= first, own, 0)
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
