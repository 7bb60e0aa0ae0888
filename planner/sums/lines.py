"""The time of a named sum, as a formula of what its function does.

A sum of m bytes over p ranks takes `rounds * latency + bytes * byte_s`. The bytes are those that go through the card
that has most to carry, one way:

    ring        2 (p - 1) rounds of m / p
    rings K     2 (p - 1) rounds of m / (K p) on each ring; rings on one card share it
    direct      2 rounds, 2 (p - 1) messages of m / p
    colours K   2 d turns of 2 rounds until the first piece of each part is back, with trees of depth d, and 2 m bytes
                behind it; where a rank has children in j colours, j times the bytes

Where several ranks of a node sum with other nodes, their card carries for all of them. All pieces of a tree have one size,
and each takes some time whatever its size. That of the first piece is in the latency, that of the others is in the time of
a byte. Only a part of less than a piece takes less than its line says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from planner.sums.names import SumName, SumRate
from planner.sums.shapes import ColourTree, inner_twice, strides

_FASTEST: Final = 1e15  # bytes a second, where time does not grow with the bytes
COLOUR_BYTES: Final = 2**15  # of a piece of a part; pieces follow each other through a tree


class SumLoad(NamedTuple):
    """Everything of a group of ranks that the bytes through one card depend on."""

    places: int
    behind: int = 1  # ranks of the group behind one card, where it has ranks on several nodes
    cards: int = 1  # of a node that parts may go over


class SumLine(NamedTuple):
    """Rounds of a sum, and bytes through the busiest card for each byte that is summed."""

    rounds: float
    bytes: float

    def seconds(self, size: float, latency_s: float, byte_s: float) -> float:
        """Returns what a sum of `size` bytes takes.

        Args: `latency_s` is of a round, `byte_s` of a byte through a card.
        """
        return self.rounds * latency_s + self.bytes * size * byte_s


def line_of(name: SumName, over: SumLoad) -> SumLine:
    """Returns rounds and bytes of a sum.

    Args: `over` has two ranks or more; the name is offered there.
    """
    p, k = over.places, name.parts
    if name.kind == "colours":
        return SumLine(4 * ColourTree(p, k, 0).depth, 2 * inner_twice(p, k) * over.behind)
    rounds = 2 if name.kind == "direct" else 2 * (p - 1)
    return SumLine(rounds, 2 * (p - 1) / (p * k) * _crossings(name, over))


def _crossings(name: SumName, over: SumLoad) -> float:
    """Returns how many ranks send through the busiest card at a time, each its share of one part."""
    p, behind = over.places, over.behind
    if name.kind == "direct":
        return behind * (p - behind) / (p - 1)
    known, load = strides(p), Counter[int]()
    for c in range(name.parts):
        stride = known[c % len(known)]
        load[c % over.cards] += min(behind, stride, p - stride)
    return max(load.values())


def fitted(name: SumName, over: SumLoad, samples: Sequence[tuple[int, float]]) -> SumRate:
    """Returns latency and bandwidth with which the formula is nearest to what was measured, relatively.

    Args: `over` is the group that summed; `samples` have bytes and seconds.
    """
    line = line_of(name, over)
    rows = [(line.rounds, line.bytes * size, seconds) for size, seconds in samples]
    both = _least_squares(rows)
    latency, byte = min((pair for pair in both if min(pair) >= 0), key=lambda pair: _error(rows, pair))
    return SumRate(
        latency_s=float(f"{latency:.4g}"), bandwidth_bytes_per_s=float(f"{1 / max(byte, 1 / _FASTEST):.4g}")
    )


def _least_squares(rows: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Returns the best pair of factors, and the best where one of them is zero, by squares of relative errors."""
    a, b = [rounds / s for rounds, _, s in rows], [sent / s for _, sent, s in rows]
    aa, bb = (sum(x * x for x in column) for column in (a, b))
    ab = sum(x * y for x, y in zip(a, b, strict=True))
    found = [(sum(a) / aa, 0.0), (0.0, sum(b) / bb)]
    if (whole := aa * bb - ab * ab) > 1e-12 * aa * bb:
        found.append(((sum(a) * bb - sum(b) * ab) / whole, (sum(b) * aa - sum(a) * ab) / whole))
    return found


def _error(rows: Sequence[tuple[float, float, float]], pair: tuple[float, float]) -> float:
    return sum((pair[0] * rounds / s + pair[1] * sent / s - 1) ** 2 for rounds, sent, s in rows)
