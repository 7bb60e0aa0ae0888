"""Says which Values are there in a stage and how many bytes they take: forwards, and on their way between stages.

Forwards no gradient is there. A Value is there from the layer that makes it to its last reader, or until a layer keeps
it: from then on it is among what the stage has saved. What leaves the stage and is kept by none of its layers counts as
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from planner.arrays import IntArray
from planner.cost.messages import last_use
from planner.cost.shared_weights import Rectangles
from planner.cost.unit_tables import Growth
from planner.model import ModelGraph, Value
from planner.profile import CostKey, LayerCost, Profile, storages


def told_values(graph: ModelGraph, layers: Sequence[str]) -> list[Value]:
    """Returns the loss and what it counted, if the stage has the last layer.

    Args: `layers` are names.
    """
    last = graph.layers[-1]
    return [graph.value[name] for name in last.outputs] if last.name in layers else []


def total_bytes(profile: Profile, values: Iterable[Value], key: CostKey) -> int:
    """Returns the bytes of some Values together, in the precision of a setting.

    Args: `key` is the setting, whatever its signature.
    """
    return sum(profile.value_bytes(value.name, key) for value in values)


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


def passing_tables(
    graph: ModelGraph, costs: Sequence[LayerCost], size_of: Mapping[str, int]
) -> tuple[Rectangles, ...]:
    """Returns the tables of arriving, sent, returning, far, and by [i, l] what was made from i on and passes layer l.

    Args: `costs` has one row a layer, `size_of` the bytes of every Value.
    """
    count, keepers = len(graph.layers), storages(graph, costs).keepers()
    arriving, sent, returning, far, passing = (Rectangles(count) for _ in range(5))
    for value in graph.values:
        if not value.producer or not value.consumers:
            continue
        made, size = graph.index[value.producer], size_of[value.name]
        users = sorted(graph.index[name] for name in set(value.consumers))
        last = users[-1]
        arriving.add_once(users, size, after=made)
        passing.add((0, made + 1), (made + 1, last), size)
        for user in users[:-1] if value.needs_grad else ():
            if keepers.get(value.name) != user:
                passing.add((0, made + 1), (user, user + 1), size)
        keeper = keepers.get(value.name, count)
        if keeper >= made:
            sent.add((0, made + 1), (made + 1, min(keeper, last) + 1), size)
        else:
            sent.add((keeper + 1, made + 1), (made + 1, last + 1), size)
        if value.needs_grad:
            far.add_once(users, size, after=made + 1)
            returning.add((0, made + 1), (made + 1, last + 1), size)
            for before, user in zip([made, *users], users, strict=False):
                returning.add((before + 1, user + 1), (user + 1, last + 1), size)
    return arriving, sent, returning, far, passing


def neighbour_tables(
    graph: ModelGraph, costs: Sequence[LayerCost], size_of: Mapping[str, int]
) -> tuple[Rectangles, ...]:
    """Returns the tables of shared, near, crossing, handed, following, back and carried.

    Args: `costs` has one row a layer, `size_of` the bytes of every Value.
    """
    count, held_in = len(graph.layers), storages(graph, costs)
    shared, near, crossing, handed, following, back, carried = (Rectangles(count) for _ in range(7))
    keepers = held_in.keepers()
    for value in graph.values:
        if not value.producer or not value.consumers:
            continue
        made, size = graph.index[value.producer], size_of[value.name]
        users = sorted(graph.index[name] for name in set(value.consumers))
        right_after = (made + 1, made + 2), (users[0] + 1, count + 1)
        near.add(*right_after, size)
        if held_in.own(value.name, made):
            shared.add(*right_after, size)
        if value.needs_grad:
            crossing.add((made + 1, users[-1] + 1), (0, count + 1), size)
            carried.add((made + 1, count + 1), (0, users[-1] + 1), size)
            keeper = keepers.get(value.name, count)
            for before, user in zip([made, *users], users, strict=False):
                following.add((0, made + 1), (user, user + 1), size)
                back.add((0, before + 1), (user, user + 1), size)
                if not made <= keeper < user:
                    handed.add((keeper + 1 if keeper < made else 0, made + 1), (user, user + 1), size)
    return shared, near, crossing, handed, following, back, carried
