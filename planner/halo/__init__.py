"""Spatial parallelism in integers: what part of each input a part of an output needs, whose it is, what it costs.

`rule(call)` gives the Step of one operation. Kernels of the same keys are in `runtime.spatial`.
"""

from __future__ import annotations

from typing import Final

from planner.halo import pointwise, reductions, resample, reshapes, rows, windows
from planner.halo.call import Call, NoRule, Rule, Step
from planner.halo.fetch import Fetch, Run
from planner.halo.layout import Cut, Layout, check_grid, coordinates, entry, even, rank_at, whole

RULES: Final[dict[str, Rule]] = {
    **windows.RULES,
    **resample.RULES,
    **reductions.RULES,
    **pointwise.RULES,
    **reshapes.RULES,
    **rows.RULES,
}
PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")


def rule(call: Call) -> Step:
    """How an operation on shards is done; NoRule names it where it cannot be."""
    found = RULES.get(call.operation)
    if found is None:
        raise call.refuse("there is no rule for it")
    if found is not pointwise.elementwise:
        for name, layout in call.tensors():
            if name in PARAMETERS and layout.cut_dims:
                raise call.refuse(f"its {name} is cut, too")
    return found(call)


__all__ = [
    "RULES",
    "Call",
    "Cut",
    "Fetch",
    "Layout",
    "NoRule",
    "Rule",
    "Run",
    "Step",
    "check_grid",
    "coordinates",
    "entry",
    "even",
    "rank_at",
    "rule",
    "whole",
]
