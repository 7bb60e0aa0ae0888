"""Gradient sums, clipping and the optimizer."""

from runtime.update.clipping import PreviousNorm, Squares
from runtime.update.deferred_updates import ClipBy, check
from runtime.update.gradient_sums import Bucket, Flat, GradientSync, OnSum, buckets_of, groups_of, trained
from runtime.update.optimizer import (
    LrSchedule,
    Make,
    SavedState,
    Updater,
    check_optimizer,
    load_state,
    owners,
    state_of,
)

__all__ = [
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
    "check_optimizer",
    "groups_of",
    "load_state",
    "owners",
    "state_of",
    "trained",
]
