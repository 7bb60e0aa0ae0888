"""Adds up which Values go from stage to stage, and which a neighbour is sure to make or read, for all stages at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.cost.shared_weights import Rectangles
from planner.model import ModelGraph
from planner.profile import LayerCost, storages


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
