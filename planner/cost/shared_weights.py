"""Counts the gradients that wait for each other where several layers share a weight, or make one from parameters.

A whole backward adds up all gradients of a weight within a stage before it adds them to the weight's own. So the
gradient of the last use waits until the first use is done. Each sum is one more tensor while it is made. A weight
half has the gradients of all uses before it adds them up. Some are there from the input half on: those to which the
operations of several uses lead at once.

Tables over intervals [i, j) of layers, each a candidate stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.cost.unit_tables import running_maximum
from planner.kept import MOVED_ENTRIES
from planner.model import ModelGraph

CutBy = Mapping[str, tuple[int, ...]]  # parameter -> axes of a group that cut it


def dropped(graph: ModelGraph, kept: Mapping[str, int], halved: Collection[str], name: str) -> int:
    """Returns the bytes of a dense gradient that is dropped, and of what is gathered from it at a time.

    Args: `kept` has the kept entries by pruned parameter, `halved` the weights in bf16; any other parameter gives 0.
    """
    if name not in kept and name not in halved:
        return 0
    row = graph.parameter[name]
    number, half = prod(row.shape), name in halved
    moved = min(kept.get(name, number), MOVED_ENTRIES) * (row.bytes // number)
    return row.bytes // 2 + moved + moved // 2 if half else row.bytes + moved


class Reuse(NamedTuple):
    """A weight and the layers that use it."""

    users: tuple[int, ...]  # positions of its layers, in order
    bytes: int

    def within(self, first: int, end: int) -> list[int]:
        """Returns the users of the weight in a stage, or none if there are fewer than two.

        Args: `first` is the stage's first layer, `end` the layer after its last.
        """
        found = [user for user in self.users if first <= user < end]
        return found if len(found) > 1 else []


def reused(graph: ModelGraph) -> list[Reuse]:
    """Returns the trainable parameters that more than one layer uses.

    Args: layers become positions in `graph`.
    """
    found = [
        Reuse(tuple(sorted({graph.index[name] for name in row.users})), row.bytes) for row in graph.trained
    ]
    return [each for each in found if len(each.users) > 1]


def made_weights(graph: ModelGraph) -> set[str]:
    """Returns the names of Values that are made of parameters alone, at least one of which is trained.

    Args: `graph` is searched in the order of its layers.
    """
    found: set[str] = set()
    for layer in graph.layers:
        if found.issuperset(layer.inputs):
            found.update(name for name in layer.outputs if graph.value[name].needs_grad)
    return found


def reused_values(graph: ModelGraph, size_of: Mapping[str, int]) -> list[Reuse]:
    """Returns the weights made of parameters that more than one layer reads.

    Args: `size_of` has the bytes of every Value.
    """
    found = []
    for name in sorted(made_weights(graph)):
        users = sorted({graph.index[user] for user in graph.value[name].consumers})
        if len(users) > 1:
            found.append(Reuse(tuple(users), size_of[name]))
    return found


def weighing(graph: ModelGraph) -> list[bool]:
    """Returns by layer whether a weight half has something to do in it, for the layer's own weights or for a made
    one.

    Args: layers are in the order of `graph`.
    """
    own = {name for row in graph.trained for name in row.users}
    made = made_weights(graph)
    return [layer.name in own or not made.isdisjoint(layer.inputs) for layer in graph.layers]


def arriving_at_made(graph: ModelGraph, size_of: Mapping[str, int]) -> list[int]:
    """Returns by layer the bytes of gradients that a walk keeps for the sake of weights made of parameters.

    Args: `size_of` has the bytes of every Value.
    """
    made = made_weights(graph)
    return [
        sum(size_of[name] for name in layer.outputs) if not made.isdisjoint(layer.inputs) else 0
        for layer in graph.layers
    ]


def waiting(reuses: Sequence[Reuse], first: int, end: int, at: int) -> int:
    """Returns the bytes of gradients that wait while one layer runs backwards, in a whole backward of a stage.

    Args: `first` and `end` are the stage's bounds, `at` is the layer.
    """
    own = [(each.within(first, end), each.bytes) for each in reuses]
    return sum(size * (1 + (at in users)) for users, size in own if users and users[0] <= at < users[-1])


def together(reuses: Sequence[Reuse]) -> list[list[Reuse]]:
    """Groups reuses that have a layer in common, also by way of others: a weight half adds them up at the same time.

    Args: `reuses` may share layers.
    Returns: disjoint groups.
    """
    groups: list[tuple[set[int], list[Reuse]]] = []
    for each in reuses:
        users, members = set(each.users), [each]
        for others, group in [pair for pair in groups if not users.isdisjoint(pair[0])]:
            groups.remove((others, group))
            users, members = users | others, group + members
        groups.append((users, members))
    return [group for _, group in groups]


def summed(reuses: Sequence[Reuse], first: int, end: int) -> int:
    """Returns the most bytes that a weight half of a stage has before it adds gradients of shared weights up.

    Args: `first` and `end` are the stage's bounds.
    """
    sums = (sum(len(each.within(first, end)) * each.bytes for each in group) for group in together(reuses))
    return max(sums, default=0)


def early(reuses: Sequence[Reuse], first: int, end: int) -> int:
    """Returns the bytes of gradients that an input half of a stage makes already: at most one a weight.

    Args: `first` and `end` are the stage's bounds.
    """
    return sum(each.bytes for each in reuses if each.within(first, end))


def waiting_from(reuses: Sequence[Reuse], layers: int) -> list[tuple[int, IntArray]]:
    """Returns `waiting` for all stages, as tables `[first, at]` with the end of the stage from which on each holds.

    A table holds until the end of the next one.

    Args: `layers` is the number of layers.
    """
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
    """Returns `summed` for all stages, `[first, end]`.

    Args: `layers` is the number of layers.
    """
    most = Rectangles(layers).table
    for group in together(reuses):
        most = np.maximum(most, _summed_table(group, layers))
    return most


def early_table(reuses: Sequence[Reuse], layers: int) -> IntArray:
    """Returns `early` for all stages, `[first, end]`.

    Args: `layers` is the number of layers.
    """
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


class Rectangles:
    """A sum of amounts over rectangles of the plane of intervals: i in [i0, i1), j in [j0, j1)."""

    def __init__(self, layers: int) -> None:
        self.corners: IntArray = np.zeros((layers + 2, layers + 2), np.int64)

    def add(self, i: tuple[int, int], j: tuple[int, int], amount: int) -> None:
        """Adds an amount to every interval whose ends lie in two ranges.

        Args: `i` and `j` are half-open ranges of first layers and of ends; empty ranges add nothing.
        """
        if i[0] < i[1] and j[0] < j[1]:
            self.corners[i[0], j[0]] += amount
            self.corners[i[1], j[0]] -= amount
            self.corners[i[0], j[1]] -= amount
            self.corners[i[1], j[1]] += amount

    def add_once(self, users: Iterable[int], amount: int, *, after: int = -1) -> None:
        """Adds an amount to every interval that starts after `after` and holds at least one of the users.

        Args: `users` are positions of layers in ascending order.
        """
        previous, end = after, len(self.corners) - 1
        for user in users:
            self.add((previous + 1, user + 1), (user + 1, end), amount)
            previous = user

    @property
    def table(self) -> IntArray:
        """Returns the sums as `[i, j]`, with i and j from 0 to the number of layers."""
        return self.corners.cumsum(0).cumsum(1)[:-1, :-1]


class Owned(NamedTuple):
    """A trained parameter, which one of its holders updates where these share the state of the optimizer."""

    users: tuple[int, ...]  # positions of its layers, in order
    elements: int
    dtype: str
    axes: tuple[int, ...] = ()  # of a group, that cut it: ranks along them hold different parts


def owned(graph: ModelGraph, kept: Mapping[str, int], cut: CutBy) -> tuple[Owned, ...]:
    """Returns the trained parameters that layers use, in the order in which they are dealt out: of their first layers.

    Args: `kept` has the kept entries of pruned parameters, and `cut` those that a group cuts.
    """
    rows = [
        Owned(
            tuple(sorted({graph.index[name] for name in row.users})),
            kept.get(row.name, prod(row.shape)),
            row.dtype,
            cut.get(row.name, ()),
        )
        for row in graph.trained
        if row.users
    ]
    return tuple(sorted(rows, key=lambda row: row.users[0]))


def largest_of(graph: ModelGraph, sizes: Mapping[str, int]) -> IntArray:
    """Returns the largest of some sizes in each stage.

    Args: `sizes` are by parameter.
    Returns: a table over intervals of layers.
    """
    largest = np.zeros(len(graph.layers), np.int64)
    for name, size in sizes.items():
        users = [graph.index[user] for user in graph.parameter[name].users]
        largest[users] = np.maximum(largest[users], size)
    return running_maximum(largest)


def written_bytes(graph: ModelGraph, *, remembered: bool) -> IntArray:
    """Returns [i, j] the bytes of buffers that a forward writes; `remembered`: those that it reads, too."""
    written = Rectangles(len(graph.layers))
    for buffer in graph.buffers:
        if buffer.mutated and buffer.remembered == remembered:
            written.add_once(sorted(graph.index[name] for name in set(buffer.users)), buffer.bytes)
    return written.table
