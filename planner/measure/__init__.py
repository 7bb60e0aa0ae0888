"""Measures what every layer of a workload costs on one device.

In: a `Workload`, a device name, micro-batches and a precision. Out: a `planner.profile.Profile`. Every distinct
layer is timed once, in a process of its own that may run out of memory or crash. Start reading at `measure.py` (the
entry point), then `rows.py` (one row a layer) and `timing.py` (its times). `process/` holds the two processes and
their messages.
"""

from planner.measure.measure import measured_on, profile, usual_precision
from planner.measure.passes import BackwardSplit, SpatialSplit

__all__ = [
    "BackwardSplit",
    "SpatialSplit",
    "measured_on",
    "profile",
    "usual_precision",
]
