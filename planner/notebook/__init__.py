"""A solved plan that can be asked for what-ifs and frontiers; `SolvedPlan` is a `Plan` that knows its question."""

from planner.notebook.solved_plan import SolvedFrontier, SolvedPlan, front

__all__ = [
    "SolvedFrontier",
    "SolvedPlan",
    "front",
]
