"""The same question over limits, devices and batches."""

from planner.explore.explanation import Explanation, PlanParts, explain
from planner.explore.frontier import Frontier, FrontierRow, frontier
from planner.explore.scaling import (
    EFFICIENT,
    HALF,
    MOST_MICROS,
    NEAR_BEST,
    Lemma,
    ScalingRow,
    Sweep,
    over_batches,
    over_devices,
)

__all__ = [
    "EFFICIENT",
    "HALF",
    "MOST_MICROS",
    "NEAR_BEST",
    "Explanation",
    "Frontier",
    "FrontierRow",
    "Lemma",
    "PlanParts",
    "ScalingRow",
    "Sweep",
    "explain",
    "frontier",
    "over_batches",
    "over_devices",
]
