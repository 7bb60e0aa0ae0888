"""Fits the rate of a named sum to what sums of several sizes took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.sums.lines import SumLoad, line_of
from planner.sums.names import SumName, SumRate

_FASTEST: Final = 1e15  # bytes a second, where time does not grow with the bytes


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
