"""The fastest plan and the proof, or what is missing."""

from planner.milp.explain import parts_ns
from planner.milp.instance import Space, changed
from planner.milp.pins import pins
from planner.milp.question import Asked, Question
from planner.milp.search.state import Effort, Search, Tried
from planner.milp.solve import answered, fastest, solve_question

__all__ = [
    "Asked",
    "Effort",
    "Question",
    "Search",
    "Space",
    "Tried",
    "answered",
    "changed",
    "fastest",
    "parts_ns",
    "pins",
    "solve_question",
]
