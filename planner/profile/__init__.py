"""Holds what every layer costs on one device: data, file, check and roofline.

In: rows from `planner.measure`, or a profile file. Out: a `Profile`, whose `cost(layer, key)` is one row. Start
reading at `profile.py` (the data), then `yaml.py` (the file) and
`check.py` (what a profile must fulfil, and which bytes a stage keeps of it). `roofline.py` has times from FLOPs and bytes alone.
"""

from planner.profile.check import check, kept_values, stage_memory, storages
from planner.profile.profile import (
    PERSISTENT,
    CostKey,
    LayerCost,
    OperationWork,
    OptimizerCost,
    Profile,
    SampleCost,
    Seconds,
    corrected,
    launch_ns,
    seconds,
)
from planner.profile.yaml import MOST_BYTES, graph_of, load, save

__all__ = [
    "MOST_BYTES",
    "PERSISTENT",
    "CostKey",
    "LayerCost",
    "OperationWork",
    "OptimizerCost",
    "Profile",
    "SampleCost",
    "Seconds",
    "check",
    "corrected",
    "graph_of",
    "kept_values",
    "launch_ns",
    "load",
    "save",
    "seconds",
    "stage_memory",
    "storages",
]
