"""Says what a stage holds while it runs forwards, which is less than what its backward needs.

No gradient is there. A Value is there from the layer that makes it to its last reader, or until a layer keeps it: from
then on it is among what the stage has saved. What leaves the stage and is kept by none of its layers counts as sent.
First for one stage, layer by layer, then for all stages at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from planner.arrays import IntArray
from planner.cost.maxima import Growth
from planner.cost.messages import last_use
from planner.model import ModelGraph, Value
from planner.profile import LayerCost


def forward_workspaces(costs: Sequence[LayerCost]) -> list[int] | None:
    """Returns by layer what a forward takes for itself; None where a profile does not tell it of every layer."""
    known = [row.forward_workspace_bytes for row in costs if row.forward_workspace_bytes is not None]
    return known if len(known) == len(costs) else None


def counted_from(graph: ModelGraph, keepers: Mapping[str, int], value: Value) -> int:
    """Returns the layer that is the first to keep a Value, or the last to read it: from there on it counts elsewhere.

    Args: `keepers` has the first layer that keeps each Value.
    """
    last = last_use(graph, value)
    return min(keepers.get(value.name, last), last)


def forward_values(
    graph: ModelGraph, keepers: Mapping[str, int], first: int, at: int, last: int
) -> tuple[list[Value], list[Value]]:
    """Returns the Values that pass by a layer forwards, and those among its outputs that count as sent.

    Args: `first` and `last` are the stage's layers, `at` is the one that runs.
    """
    name = graph.layers[at].name
    made = [graph.value[x] for layer in graph.layers[first:at] for x in layer.outputs]
    passing = [v for v in made if name not in v.consumers and at < counted_from(graph, keepers, v) <= last]
    own = [graph.value[x] for x in graph.layers[at].outputs]
    return passing, [v for v in own if counted_from(graph, keepers, v) > last]


def forward_amounts(
    graph: ModelGraph, keepers: Mapping[str, int], size_of: Mapping[str, int], work: Sequence[int]
) -> tuple[IntArray, list[Growth]]:
    """Returns [layer] what a layer takes forwards beside what is saved, and what more that is in longer stages.

    Args: `keepers` has the first layer that keeps each Value, `size_of` the bytes of every Value, and `work` the
        workspace of every layer forwards.
    """
    amounts, growing = np.array(work, np.int64), []
    for value in graph.values:
        if not value.producer or not value.consumers:
            continue
        made, counted = graph.index[value.producer], counted_from(graph, keepers, value)
        if counted <= made:
            continue
        starts, size = (0, made + 1), size_of[value.name]
        amounts[made] -= size
        growing.append(Growth(counted, starts, (made, made + 1), size))
        users = sorted({graph.index[name] for name in value.consumers} | {made, counted})
        for before, user in pairwise(users):
            if before + 1 < user <= counted:
                growing.append(Growth(counted, starts, (before + 1, user), size))
    return amounts, sorted(growing, key=lambda each: each.holding)
