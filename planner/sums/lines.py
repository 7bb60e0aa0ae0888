"""The time of a named sum, as a formula of what its function does.

A sum of m bytes over p ranks takes `rounds * latency + bytes * byte_s`. The bytes are those that go through the card
that has most to carry, one way:

    ring        2 (p - 1) rounds of m / p
    rings K     2 (p - 1) rounds of m / (K p) on each ring; rings on one card share it
    direct      2 rounds, 2 (p - 1) messages of m / p
    colours K   2 d + s - 1 turns of 2 rounds and 2 m / s bytes, with trees of depth d and s pieces a part;
                where a rank has children in j colours, j times the bytes

Pieces of a tree have one size, so their number grows with m. That makes a line of a large sum beside that of a small
one, of which the lower counts. Where several ranks of a node sum with other nodes, their card carries for all of them.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Final, NamedTuple

from planner.sums.names import SumName
from planner.sums.shapes import Tree, inner_twice, strides

COLOUR_PIECE: Final = 2**18  # bytes of a part that travel at a time


class Load(NamedTuple):
    """Everything of a group of ranks that the bytes through one card depend on."""

    places: int
    behind: int = 1  # ranks of the group behind one card, where it has ranks on several nodes
    cards: int = 1  # of a node that parts may go over


class Line(NamedTuple):
    """Rounds and bytes of a sum, each with what every byte summed adds to it."""

    rounds: float
    rounds_a_byte: float
    bytes: float
    bytes_a_byte: float

    def seconds(self, size: float, latency_s: float, byte_s: float) -> float:
        """Returns what a sum of `size` bytes takes.

        Args: `latency_s` is of a round, `byte_s` of a byte through a card.
        """
        rounds, sent = self.rounds + self.rounds_a_byte * size, self.bytes + self.bytes_a_byte * size
        return rounds * latency_s + sent * byte_s


def lines(name: SumName, over: Load) -> tuple[Line, ...]:
    """Returns the lines of a sum, of which the lowest counts.

    Args: `over` has two ranks or more; the name is offered there.
    """
    p, k = over.places, name.parts
    if name.kind == "colours":
        turns, sent, most = 2 * Tree(p, k, 0).depth, _tree_bytes(name, over), k * COLOUR_PIECE
        small = Line(2 * turns, 0.0, 0.0, turns * sent)
        return (small, Line(2 * (turns - 1), 2 / most, (turns - 1) * sent * most, sent))
    share = 2 * (p - 1) / (p * k)
    return (Line(2 if name.kind == "direct" else 2 * (p - 1), 0.0, 0.0, share * _crossings(name, over)),)


def terms(name: SumName, over: Load, size: int) -> tuple[float, float]:
    """Returns rounds and bytes of one sum; those of trees count whole pieces, as their function sends them.

    Args: `size` is in bytes.
    """
    if name.kind != "colours":
        line = lines(name, over)[0]
        return line.rounds, line.bytes_a_byte * size
    pieces = max(1, ceil(size / name.parts / COLOUR_PIECE))
    turns = 2 * Tree(over.places, name.parts, 0).depth + pieces - 1
    return 2.0 * turns, turns * _tree_bytes(name, over) * size / pieces


def _tree_bytes(name: SumName, over: Load) -> float:
    return 2.0 * inner_twice(over.places, name.parts) * over.behind


def _crossings(name: SumName, over: Load) -> float:
    """Returns how many ranks send through the busiest card at a time, each its share of one part."""
    p, behind = over.places, over.behind
    if name.kind == "direct":
        return behind * (p - behind) / (p - 1)
    known, load = strides(p), Counter[int]()
    for c in range(name.parts):
        stride = known[c % len(known)]
        load[c % over.cards] += min(behind, stride, p - stride)
    return max(load.values())
