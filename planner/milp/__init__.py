"""The solver: a `Question` comes in, the fastest plan with its certificate goes out, or what is missing.

`solve(question)` is all that most callers need. Inside, an `Instance` holds the question with its tables; which
configurations it has says `planner.configurations`, what the cuts of one cost `planner.cuts`, and how fast any of them
can be `planner.proof`. `search/` goes through the configurations, `layer_orders/` through other orders of the layers of
a model that is no chain, and `write_plan.py` writes the plan.

Start reading at `question.py`, then `formulation.py`, which states the whole problem as a mixed-integer program.
"""

from planner.milp.explain import PricedPins, configuration_of, parts_ns, price_pins
from planner.milp.instance import Instance, changed
from planner.milp.question import Question, refuse_impossible, solve, solve_or_none, solve_with_search
from planner.milp.search.state import SearchState
from planner.milp.write_plan import price_group

__all__ = [
    "Instance",
    "PricedPins",
    "Question",
    "SearchState",
    "changed",
    "configuration_of",
    "parts_ns",
    "price_group",
    "price_pins",
    "refuse_impossible",
    "solve",
    "solve_or_none",
    "solve_with_search",
]
