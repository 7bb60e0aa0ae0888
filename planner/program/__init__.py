"""A schedule with every send and receive, in an order that cannot deadlock.

In go a `Schedule` and the plan's hops and times. Out comes a `Program`, the same on every rank, and a list of what is
wrong with any program.
Start reading in `program.py`, then `lower.py`; `check.py` judges.
"""

from planner.program.check import violations
from planner.program.lower import Instruction, Layout, Program, lower

__all__ = [
    "Instruction",
    "Layout",
    "Program",
    "lower",
    "violations",
]
