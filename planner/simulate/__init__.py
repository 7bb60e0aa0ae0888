"""A schedule with durations becomes times and memory.

In go a `Schedule`, the plan's hops, a duration vector in nanoseconds, and bytes a stage. Out come a `Timeline`,
makespans, periods with the path or cycle that proves them (`Bound`), and peaks of memory.
Start reading in `simulate.py`; `longest_path.py` evaluates and `period.py` finds how long steps take in the long run.
`lifetimes.py` says from when to when bytes are held.
"""

from planner.simulate.best_gradient_order import best_overlap
from planner.simulate.lifetimes import LOOKAHEAD, PART_NAMES, PARTS, Spans, StageBytes, lifetimes
from planner.simulate.longest_path import Compiled, compile, duration_vector, makespans, node_ends
from planner.simulate.peaks import (
    SQUARE_BYTES,
    SQUARED_ELEMENTS,
    live_counts,
    memory_rows,
    part_rows,
    peaks,
    undominated,
)
from planner.simulate.period import Bound, critical_counts, critical_path, period
from planner.simulate.simulate import (
    RunRecord,
    period_of_plan,
    period_of_replica,
    simulate,
    simulate_in_stride,
    simulate_plan,
)

__all__ = [
    "LOOKAHEAD",
    "PARTS",
    "PART_NAMES",
    "SQUARED_ELEMENTS",
    "SQUARE_BYTES",
    "Bound",
    "Compiled",
    "RunRecord",
    "Spans",
    "StageBytes",
    "best_overlap",
    "compile",
    "critical_counts",
    "critical_path",
    "duration_vector",
    "lifetimes",
    "live_counts",
    "makespans",
    "memory_rows",
    "node_ends",
    "part_rows",
    "peaks",
    "period",
    "period_of_plan",
    "period_of_replica",
    "simulate",
    "simulate_in_stride",
    "simulate_plan",
    "undominated",
]
