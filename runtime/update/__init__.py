"""Gradients of a step are summed over all ranks that hold a parameter, clipped, and applied by the user's optimizer.

In come stages' parameters and the user's optimizer; `Updater` does what SYNC and STEP actions say.
Start at `gradient_sums.py` (buckets and their sums), then `optimizer.py` (updates).
"""

from runtime.update.average import Averages
from runtime.update.clipping import ClipBy, PreviousNorm, Squares, check
from runtime.update.gradient_sums import Bucket, Flat, GradientSync, OnSum, buckets_of, groups_of, trained
from runtime.update.optimizer import (
    LrSchedule,
    Make,
    SavedState,
    Updater,
    load_state,
    owners,
    state_of,
)

__all__ = [
    "Averages",
    "Bucket",
    "ClipBy",
    "Flat",
    "GradientSync",
    "LrSchedule",
    "Make",
    "OnSum",
    "PreviousNorm",
    "SavedState",
    "Squares",
    "Updater",
    "buckets_of",
    "check",
    "groups_of",
    "load_state",
    "owners",
    "state_of",
    "trained",
]
