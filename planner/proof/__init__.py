"""How fast any cut of one configuration can be: good cuts from above, bounds from below.

In comes a `CutProblem`. Out come a good cut (`descend`), a lower bound of all cuts, and the cuts that may still beat a
limit (`ConfigurationProof`). Start reading in `prove.py`. `descent.py` finds cuts, `hull.py` has the linear program over
all cuts of one order, `order_free.py` bounds one cut in any order, and `branch_and_bound.py` closes what the first look
leaves open.
"""

from planner.proof.boxes import NOTHING, ROUNDING, Box
from planner.proof.descent import (
    UNFIT_NS,
    Answer,
    allowed,
    annealed,
    balanced,
    descend,
    even,
    fits,
    judge,
    near,
    neighbours,
    starts,
)
from planner.proof.feasible import (
    every_cut,
    fits_surely,
    memory_weights,
    shortage,
    silent_parts,
    whole,
    windows,
)
from planner.proof.hull import Windows
from planner.proof.order_free import order_free_bound_ns
from planner.proof.prove import ConfigurationProof, ConfigurationState
from planner.proof.stagewise import stagewise_ns
from planner.proof.weights import Weights, stack, weigh

__all__ = [
    "NOTHING",
    "ROUNDING",
    "UNFIT_NS",
    "Answer",
    "Box",
    "ConfigurationProof",
    "ConfigurationState",
    "Weights",
    "Windows",
    "allowed",
    "annealed",
    "balanced",
    "descend",
    "even",
    "every_cut",
    "fits",
    "fits_surely",
    "judge",
    "memory_weights",
    "near",
    "neighbours",
    "order_free_bound_ns",
    "shortage",
    "silent_parts",
    "stack",
    "stagewise_ns",
    "starts",
    "weigh",
    "whole",
    "windows",
]
