"""Many questions at once: a `Question` comes in, several plans with what they teach go out.

`frontier` trades time against memory and devices, `over_devices` and `over_batches` sweep one number, and `explain`
says why a plan and no other. Start reading at `frontier.py`.
"""

from planner.explore.explanation import _SEEN, Explanation, PlanParts, explain
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
    "_SEEN",
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
