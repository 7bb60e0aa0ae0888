"""The solver: a `Question` comes in, the fastest plan with its certificate goes out, or what is missing.

`solve(question)` is all that most callers need. Inside, an `Instance` holds the question with its tables, `search/`
goes through configurations, `cut/` prices the cuts of one, `proof/` bounds them (`hull.py` by a linear program for one
order). A worker's bytes are added up in `cut/stage_costs.py`, and written by `write_plan.py`.

Start reading at `question.py`, then `formulation.py`, which states the whole problem as a mixed-integer program.
"""

from planner.milp.configurations.spatial_choices import grids_of
from planner.milp.explain import PricedPins, configuration_of, parts_ns, price_pins
from planner.milp.instance import Instance, changed
from planner.milp.limits import Effort, SearchProgress, SearchWatch, effort_named
from planner.milp.pins import Pins, pins
from planner.milp.proof.prove import ConfigurationState
from planner.milp.question import (
    Question,
    refuse_impossible,
    solve,
    solve_or_none,
    solve_with_search,
)
from planner.milp.search.state import SearchState
from planner.milp.write_plan import price_group

__all__ = [
    "ConfigurationState",
    "Effort",
    "Instance",
    "Pins",
    "PricedPins",
    "Question",
    "SearchProgress",
    "SearchState",
    "SearchWatch",
    "changed",
    "configuration_of",
    "effort_named",
    "grids_of",
    "parts_ns",
    "pins",
    "price_group",
    "price_pins",
    "refuse_impossible",
    "solve",
    "solve_or_none",
    "solve_with_search",
]
