"""Asks a planning question over limits, devices and batches, and explains its answer.

A profile, a cluster and what is asked go in; frontiers, sweeps and explanations come out as data, which
`planner.show` draws. Start reading in `frontier.py`.
"""

from planner.explore.explanation import Explanation, PlanParts, explained
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
    "explained",
    "frontier",
    "over_batches",
    "over_devices",
]
