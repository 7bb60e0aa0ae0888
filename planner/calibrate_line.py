"""A line through what was planned and what was measured, in whatever unit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Sample(NamedTuple):
    """One stage's action, update or sum, one hop, or one peak of a run: as planned, and the mean of what was measured."""

    planned: float
    measured: float


def line_through(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    """Relative errors count, so that small sizes are heard; neither number is negative."""
    sizes = [s.planned for s in samples if s.planned > 0]
    if len(sizes) < 3 or max(sizes) < 2 * min(sizes):
        return _by_the_middle(samples, proportional)
    weights = [1 / max(s.measured, 1.0) ** 2 for s in samples]
    total = sum(weights)
    x = sum(w * s.planned for w, s in zip(weights, samples, strict=True)) / total
    y = sum(w * s.measured for w, s in zip(weights, samples, strict=True)) / total
    over = sum(w * (s.planned - x) * (s.measured - y) for w, s in zip(weights, samples, strict=True))
    slope = over / sum(w * (s.planned - x) ** 2 for w, s in zip(weights, samples, strict=True))
    if slope <= 0 or y - slope * x < 0:
        return _by_the_middle(samples, proportional)
    return y - slope * x, slope


def _by_the_middle(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    beyond = median(s.measured - s.planned for s in samples)
    if beyond >= 0 and not proportional:
        return beyond, 1.0
    return 0.0, max(1e-3, median([s.measured / s.planned for s in samples if s.planned] or [1.0]))
