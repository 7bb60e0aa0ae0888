"""Gradients of a step are summed over all ranks that hold a parameter, clipped, and applied by the user's optimizer.

In come stages' parameters and the user's optimizer; `Updater` does what SYNC and STEP actions say.
Start at `gradient_sums.py` (buckets and their sums), then `optimizer.py` (updates).
"""

from runtime.update.clipping import Averages, ClipBy, PreviousNorm, Squares, check
from runtime.update.flats import AnyFlat, Bucket, Flat, OwnPart, Shared, buckets_of, for_whole, weakly
from runtime.update.gradient_sums import GradientSync, OnSum, groups_of, named_sums, trained
from runtime.update.optimizer import (
    LrSchedule,
    Make,
    SavedState,
    Settings,
    Updater,
    load_state,
    made,
    state_of,
)

__all__ = [
    "AnyFlat",
    "Averages",
    "Bucket",
    "ClipBy",
    "Flat",
    "GradientSync",
    "LrSchedule",
    "Make",
    "OnSum",
    "OwnPart",
    "PreviousNorm",
    "SavedState",
    "Settings",
    "Shared",
    "Squares",
    "Updater",
    "buckets_of",
    "check",
    "for_whole",
    "groups_of",
    "load_state",
    "made",
    "named_sums",
    "state_of",
    "trained",
    "weakly",
]
