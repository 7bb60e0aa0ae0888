"""Judges any plan from the problem statement; knows no solver.

In: a plan, and what is known of its model, costs and cluster. Out: a list of violations, empty for a right plan.
Start reading at `verify.py` (the entry point, and rules that need the plan alone). Then come `model.py` (layers,
messages and grids), `costs.py` (times and memory) and `machines.py` (devices).
"""

from planner.verify.verify import check, form, violations

__all__ = [
    "check",
    "form",
    "violations",
]
