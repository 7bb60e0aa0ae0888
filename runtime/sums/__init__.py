"""Sums of gradients between hosts, each by a name that a plan may have, and the queues that they run in.

In: a name of `planner.sums`, a group of ranks and their network cards. Out: a `NamedSum`, which sums buffers in place
beside the training. Start at `named.py`; `ordered.py` has the sum in the order of ranks, `colours.py` the trees,
`queues.py` the queue of a communicator.
"""

from runtime.sums.measure import SUM_BYTES, TimedSum, time_sums
from runtime.sums.named import MakeRail, named_sum
from runtime.sums.ordered import add_up, add_up_parts
from runtime.sums.queues import Line, NamedSum

__all__ = [
    "SUM_BYTES",
    "Line",
    "MakeRail",
    "NamedSum",
    "TimedSum",
    "add_up",
    "add_up_parts",
    "named_sum",
    "time_sums",
]
