"""What runs teach: corrections with the error that is left."""

from planner.calibrate.fit import Observation, fit
from planner.calibrate.lines import with_corrections
from planner.calibrate.refine import refined

__all__ = [
    "Observation",
    "fit",
    "refined",
    "with_corrections",
]
