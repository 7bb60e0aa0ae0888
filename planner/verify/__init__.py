"""Judges any plan from the problem statement, without knowledge of a solver.

In come a plan and, as far as there are any, its model, profile and cluster. Out come violations (`violations`), or
the plan itself or BadPlan (`check`). Start reading in `verify.py`; rules that need the model, the costs or the
machines stand in files with these names.
"""

from planner.verify.verify import check, violations

__all__ = [
    "check",
    "violations",
]
