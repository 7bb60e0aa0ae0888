"""Weights that several layers use, and layers whose weights are made of others: their gradients wait for each other.

A whole backward adds up all gradients of a weight within a stage before it adds them to the weight's own, so the one
of the last use waits until the first use is done. Each sum is a tensor more while it is made. A weight half has those
of all uses before it adds them up, and those that the operations of several uses lead to at once it has from the input
half on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.cost.intervals import Rectangles
from planner.model import ModelGraph


class Reuse(NamedTuple):
    users: tuple[int, ...]  # positions of its layers, in order
    bytes: int

    def within(self, first: int, end: int) -> list[int]:
        """Positions from `first` on and before `end`, of two or more."""
        found = [user for user in self.users if first <= user < end]
        return found if len(found) > 1 else []


def reused(graph: ModelGraph) -> list[Reuse]:
    """Parameters with more than one layer."""
    found = [
        Reuse(tuple(sorted({graph.index[name] for name in row.users})), row.bytes)
        for row in graph.parameters
        if row.trainable
    ]
    return [each for each in found if len(each.users) > 1]


def made_weights(graph: ModelGraph) -> set[str]:
    """Values that are made of parameters alone, and lead to some that train."""
    found: set[str] = set()
    for layer in graph.layers:
        if found.issuperset(layer.inputs):
            found.update(name for name in layer.outputs if graph.value[name].needs_grad)
    return found


def reused_values(graph: ModelGraph, size_of: Mapping[str, int]) -> list[Reuse]:
    """The same of weights that are made: with more than one consumer."""
    found = []
    for name in sorted(made_weights(graph)):
        users = sorted({graph.index[user] for user in graph.value[name].consumers})
        if len(users) > 1:
            found.append(Reuse(tuple(users), size_of[name]))
    return found


def weighing(graph: ModelGraph) -> list[bool]:
    """By layer, whether a weight half has something to do in it: for weights of its own, or for what made one."""
    own = {name for row in graph.parameters if row.trainable for name in row.users}
    made = made_weights(graph)
    return [layer.name in own or not made.isdisjoint(layer.inputs) for layer in graph.layers]


def arriving_at_made(graph: ModelGraph, size_of: Mapping[str, int]) -> list[int]:
    """By layer, the gradients that a walk keeps of it for the sake of a weight that was made."""
    made = made_weights(graph)
    return [
        sum(size_of[name] for name in layer.outputs) if not made.isdisjoint(layer.inputs) else 0
        for layer in graph.layers
    ]


def waiting(reuses: Sequence[Reuse], first: int, end: int, at: int) -> int:
    """While the layer at this position runs backwards, in a whole backward of the layers from `first` to `end`."""
    own = [(each.within(first, end), each.bytes) for each in reuses]
    return sum(size * (1 + (at in users)) for users, size in own if users and users[0] <= at < users[-1])


def together(reuses: Sequence[Reuse]) -> list[list[Reuse]]:
    """Those in one list that have a layer in common, so that a weight half adds them up at the same time."""
    groups: list[tuple[set[int], list[Reuse]]] = []
    for each in reuses:
        users, members = set(each.users), [each]
        for others, group in [pair for pair in groups if not users.isdisjoint(pair[0])]:
            groups.remove((others, group))
            users, members = users | others, group + members
        groups.append((users, members))
    return [group for _, group in groups]


def summed(reuses: Sequence[Reuse], first: int, end: int) -> int:
    """The most in a weight half before they are added up."""
    sums = (sum(len(each.within(first, end)) * each.bytes for each in group) for group in together(reuses))
    return max(sums, default=0)


def early(reuses: Sequence[Reuse], first: int, end: int) -> int:
    """Gradients that an input half makes already: at most one a weight."""
    return sum(each.bytes for each in reuses if each.within(first, end))


def waiting_from(reuses: Sequence[Reuse], layers: int) -> list[tuple[int, IntArray]]:
    """`waiting` by [first, at], for each end from which on it is that, until the next."""
    found = []
    for end in sorted({user + 1 for each in reuses for user in each.users[1:]}):
        table = Rectangles(layers)
        for each in reuses:
            users = each.within(0, end)
            for before, user in zip([-1, *users], users[:-1], strict=False):
                table.add((before + 1, user + 1), (user, users[-1]), each.bytes)
                table.add((0, user + 1), (user, user + 1), each.bytes)
        found.append((end, table.table[:-1, :-1]))
    return found


def summed_tables(reuses: Sequence[Reuse], layers: int) -> IntArray:
    """`summed` by [first, end]."""
    most = Rectangles(layers).table
    for group in together(reuses):
        most = np.maximum(most, _summed_table(group, layers))
    return most


def early_table(reuses: Sequence[Reuse], layers: int) -> IntArray:
    """`early` by [first, end]."""
    table = Rectangles(layers)
    for each in reuses:
        for before, user, after in zip([-1, *each.users], each.users, each.users[1:], strict=False):
            table.add((before + 1, user + 1), (after + 1, layers + 1), each.bytes)
    return table.table


def _summed_table(group: Sequence[Reuse], layers: int) -> IntArray:
    table = Rectangles(layers)
    for each in group:
        bounds = [-1, *each.users, layers]
        for a in range(1, len(bounds) - 2):
            for b in range(a + 1, len(bounds) - 1):
                rows, columns = (bounds[a - 1] + 1, bounds[a] + 1), (bounds[b] + 1, bounds[b + 1] + 1)
                table.add(rows, columns, (b - a + 1) * each.bytes)
    return table.table
