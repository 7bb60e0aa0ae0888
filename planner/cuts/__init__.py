"""The cuts of one configuration: what each costs in time and in bytes, for many cuts at once.

In come a configuration with its order and the tables of stages; out comes a `CutProblem`, which prices cuts as arrays.
Start reading in `problem.py` (time), then `stage_costs.py`, where a worker's bytes are added up. `frozen_order.py` keeps
what is worked out once for an order, `recompute_choice.py` lets each stage recompute or not, and `unit_times.py` has the
work of every layer, with what gathers and sums of its unit add, for bounds that know no cut yet.
"""

from planner.cuts.frozen_order import CutRow, Moments, Order, WorkMeter
from planner.cuts.problem import CutProblem
from planner.cuts.recompute_choice import RecomputeMoments, RecomputeProblem
from planner.cuts.recompute_least import LeastRecompute, alone
from planner.cuts.stage_bytes import updated_alone, updated_before
from planner.cuts.stage_costs import COMPUTE, KINDS, Durations, GridKey
from planner.cuts.unit_times import (
    LayerWork,
    Passed,
    UnitFloors,
    column_sums,
    layer_work,
    own_bytes,
    row_sums,
    shared_by,
    with_units,
)

__all__ = [
    "COMPUTE",
    "KINDS",
    "CutProblem",
    "CutRow",
    "Durations",
    "GridKey",
    "LayerWork",
    "LeastRecompute",
    "Moments",
    "Order",
    "Passed",
    "RecomputeMoments",
    "RecomputeProblem",
    "UnitFloors",
    "WorkMeter",
    "alone",
    "column_sums",
    "layer_work",
    "own_bytes",
    "row_sums",
    "shared_by",
    "updated_alone",
    "updated_before",
    "with_units",
]
