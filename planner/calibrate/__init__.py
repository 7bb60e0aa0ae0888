"""Corrections that runs teach about costs, each with the error that is left.

In come runs: a plan and the timeline of its ranks for each. Out come `Corrections` for a cluster file (`fit`), a
cluster with these corrections (`with_corrections`), or one plan with measured times and a better order (`refined`).
Start reading in `fit.py`; `repredict.py` takes corrections out of a plan or puts them in.
"""

from planner.calibrate.fit import Observation, fit
from planner.calibrate.lines import with_corrections
from planner.calibrate.refine import refined

__all__ = [
    "Observation",
    "fit",
    "refined",
    "with_corrections",
]
