"""What every layer costs on one device."""

from planner.profile.check import check
from planner.profile.profile import (
    PERSISTENT,
    CostKey,
    LayerCost,
    OptimizerCost,
    Profile,
    Seconds,
    corrected,
    launch_ns,
)
from planner.profile.roofline import OperationWork, seconds
from planner.profile.storages import kept_values, stage_memory, storages
from planner.profile.yaml import load, save

__all__ = [
    "PERSISTENT",
    "CostKey",
    "LayerCost",
    "OperationWork",
    "OptimizerCost",
    "Profile",
    "Seconds",
    "check",
    "corrected",
    "kept_values",
    "launch_ns",
    "load",
    "save",
    "seconds",
    "stage_memory",
    "storages",
]
