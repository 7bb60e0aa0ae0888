"""A solved plan that can be asked for what-ifs and frontiers."""

from planner.notebook.solved_plan import Front, Solved, front

__all__ = [
    "Front",
    "Solved",
    "front",
]
