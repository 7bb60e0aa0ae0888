"""Answers one planning question many times: over memory limits, devices and batches.

In comes a `Question`; every answer is a plan of the solver in `planner.milp`. `frontier` returns the Pareto-optimal
plans, `over_devices`, `over_batches` and `over_kept` return a sweep, `explain` says why a plan won. Start reading in
`frontier.py`.
"""

from planner.explore.explanation import Explanation, MoreMemory, PlanParts, PrunedState, StageSums, explain
from planner.explore.frontier import Frontier, FrontierRow, frontier
from planner.explore.scaling import (
    EFFICIENT,
    HALF,
    MOST_MICROS,
    NEAR_BEST,
    Goal,
    Lemma,
    ScalingRow,
    Sweep,
    over_batches,
    over_devices,
    over_kept,
)

__all__ = [
    "EFFICIENT",
    "HALF",
    "MOST_MICROS",
    "NEAR_BEST",
    "Explanation",
    "Frontier",
    "FrontierRow",
    "Goal",
    "Lemma",
    "MoreMemory",
    "PlanParts",
    "PrunedState",
    "ScalingRow",
    "StageSums",
    "Sweep",
    "explain",
    "frontier",
    "over_batches",
    "over_devices",
    "over_kept",
]
