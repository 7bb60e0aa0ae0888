"""Tables over intervals [i, j) of layers, each a candidate stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from planner.arrays import IntArray


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


def running_maximum(amounts: IntArray) -> IntArray:
    """Returns `[i, j]`, the largest of the amounts from i to j - 1; 0 for empty intervals.

    Args: `amounts` has one number a layer.
    """
    count = len(amounts)
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for i in range(count):
        table[i, i + 1 :] = np.maximum.accumulate(amounts[i:])
    return table
