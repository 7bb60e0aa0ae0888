"""The table of all rules: what part of each input a part of an output needs, whose it is, and what that costs.

`rule(call)` gives the Step of one operation. Kernels of the same keys are in `runtime.spatial`.
"""

from __future__ import annotations

from typing import Final

from planner.spatial.rule import Call, Rule, Step
from planner.spatial.rules import pointwise, reductions, resample, reshapes, rows, windows

RULES: Final[dict[str, Rule]] = {
    **windows.WINDOWS,
    **resample.RESAMPLES,
    **reductions.REDUCTIONS,
    **pointwise.POINTWISE,
    **reshapes.RESHAPES,
    **rows.ROWS,
}
PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")


def rule(call: Call) -> Step:
    """Returns the Step that tells how an operation is done on shards.

    Raises: NoRule, which names the operation, where it cannot be done.
    """
    found = RULES.get(call.operation)
    if found is None:
        raise call.refuse("there is no rule for it")
    if found is not pointwise.elementwise:
        for name, layout in call.tensors():
            if name in PARAMETERS and layout.cut_dims:
                raise call.refuse(f"its {name} is cut, too")
    return found(call)
