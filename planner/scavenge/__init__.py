"""Decides which job trains on how many idle nodes, and replays a site's log to say what that would have brought.

In go jobs with the rate of every size (`Curve`, from folders of plans), and the idle nodes: now, or of a whole log.
Out come a size for every job (`decide`), and the efficiency of a policy over a log (`replay`).
Everything here is a pure function of its arguments. Start reading in `decide.py`, then `replay.py`.
"""

from planner.scavenge.curves import (
    DOWN_S,
    UP_S,
    Curve,
    ElasticJob,
    curve_of_plans,
    jobs_in,
    plans_in,
    repeated,
)
from planner.scavenge.decide import LOOK_AHEAD_S, Holding, Limit, decide, decide_by_milp, gain, knapsack
from planner.scavenge.logs import FORMATS, IdleLog, Spell, log_of_spells, read_log
from planner.scavenge.replay import Policy, Replayed, Tenure, dedicated_rate, equal_share, planned, replay

__all__ = [
    "DOWN_S",
    "FORMATS",
    "LOOK_AHEAD_S",
    "UP_S",
    "Curve",
    "ElasticJob",
    "Holding",
    "IdleLog",
    "Limit",
    "Policy",
    "Replayed",
    "Spell",
    "Tenure",
    "curve_of_plans",
    "decide",
    "decide_by_milp",
    "dedicated_rate",
    "equal_share",
    "gain",
    "jobs_in",
    "knapsack",
    "log_of_spells",
    "planned",
    "plans_in",
    "read_log",
    "repeated",
    "replay",
]
