"""A solved plan for people who explore: it shows itself and answers further questions.

In: a plan and the question that it answers. Out: a `SolvedPlan` with `what_if` and `frontier`, whose rows are solved
plans again. Start reading in `solved_plan.py`.
"""

from planner.notebook.solved_plan import SolvedFrontier, SolvedPlan, front, searched

__all__ = [
    "SolvedFrontier",
    "SolvedPlan",
    "front",
    "searched",
]
