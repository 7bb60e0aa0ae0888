"""Every distinct layer is timed once, in a process that may die."""

from planner.measure.measure import profile
from planner.measure.passes import BackwardSplit, SpatialSplit

__all__ = [
    "BackwardSplit",
    "SpatialSplit",
    "profile",
]
