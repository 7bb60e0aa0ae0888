"""Says who sends to whom: rings by their stride, and trees by their colour.

Ranks are 0 to p - 1. A ring of stride c sends from each rank i to i + c, modulo p; it visits all ranks where c and p
have no common divisor, and rings of distinct strides share no directed link. A tree of k colours has k children a node.
In colour c, the node with label v is rank v + c ceil(p / k), modulo p, so colours begin at other ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd


@cache
def strides(places: int) -> tuple[int, ...]:
    """Returns the strides of all rings that visit every rank, those that go least far first.

    Args: `places` is the number of ranks, two or more.
    """
    found = [c for c in range(1, places) if gcd(c, places) == 1]
    return tuple(sorted(found, key=lambda c: (min(c, places - c), c)))


@dataclass(frozen=True)
class ColourTree:
    """One of several trees over the same ranks: `colours` of them, each node with as many children at most."""

    places: int
    colours: int
    colour: int

    @property
    def _first(self) -> int:
        return self.colour * -(-self.places // self.colours)

    def _rank(self, label: int) -> int:
        return (label + self._first) % self.places

    def _label(self, rank: int) -> int:
        return (rank - self._first) % self.places

    def parent(self, rank: int) -> int | None:
        """Returns the rank above a rank, None for the root."""
        label = self._label(rank)
        return self._rank((label - 1) // self.colours) if label else None

    def children(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks below a rank, in the order in which their numbers are added."""
        first = self._label(rank) * self.colours + 1
        return tuple(self._rank(v) for v in range(first, min(first + self.colours, self.places)))

    def level(self, rank: int) -> int:
        """Returns the number of links between the root and a rank."""
        label, found = self._label(rank), 0
        while label:
            label, found = (label - 1) // self.colours, found + 1
        return found

    @cached_property
    def depth(self) -> int:
        """Returns the number of links between the root and the farthest rank."""
        return self.level(self._rank(self.places - 1))

    def links(self) -> set[tuple[int, int]]:
        """Returns the directed links on which ranks send to their parents; answers take them the other way."""
        return {(rank, parent) for rank in range(self.places) if (parent := self.parent(rank)) is not None}

    def inner(self) -> set[int]:
        """Returns the ranks that have children."""
        return {rank for rank in range(self.places) if self.children(rank)}


@cache
def disjoint(places: int, colours: int) -> bool:
    """Returns whether no two colours use one directed link.

    Args: `places` is the number of ranks, `colours` that of trees.
    """
    used = Counter(link for c in range(colours) for link in ColourTree(places, colours, c).links())
    return max(used.values(), default=1) == 1


@cache
def inner_twice(places: int, colours: int) -> int:
    """Returns in how many colours a rank has children at most; 1 where inner nodes of colours are disjoint.

    Args: `places` is the number of ranks, `colours` that of trees.
    """
    used = Counter(rank for c in range(colours) for rank in ColourTree(places, colours, c).inner())
    return max(used.values(), default=1)
