"""The fastest plan and the proof, or what is missing."""

from planner.milp.explain import configuration_of, parts_ns
from planner.milp.instance import Instance, changed
from planner.milp.pins import pins
from planner.milp.question import Question
from planner.milp.search.state import ConfigurationState, Effort, SearchState
from planner.milp.solve import solve, solve_or_none, solve_with_search

__all__ = [
    "ConfigurationState",
    "Effort",
    "Instance",
    "Question",
    "SearchState",
    "changed",
    "configuration_of",
    "parts_ns",
    "pins",
    "solve",
    "solve_or_none",
    "solve_with_search",
]
