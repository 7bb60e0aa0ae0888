"""Learns from runs: corrections of costs, with the error that is left, and better orders for measured times.

In: plans and the timelines of their runs. Out: `Corrections` (data of `planner.cluster`), or a plan with another
order. Start reading at `fit.py` (runs to corrections), then `lines.py` (lines through samples, and the
errors that they leave) and `refine.py` (a plan's times with other corrections, and orders for measured times).
"""

from planner.calibrate.fit import Observation, fit
from planner.calibrate.refine import refined, with_corrections

__all__ = [
    "Observation",
    "fit",
    "refined",
    "with_corrections",
]
