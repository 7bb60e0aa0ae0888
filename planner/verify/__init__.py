"""Judges any plan from the problem statement. Knows no solver."""

from planner.verify.verify import check, violations

__all__ = [
    "check",
    "violations",
]
