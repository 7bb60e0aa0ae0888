"""A plan and its run as traces for Perfetto: slices, messages as flows, memory, and torch.profiler's events among them.

In: a plan, timelines of it, and what torch.profiler wrote in ranks. Out: the text of one trace file.
Start reading in `slices.py`; `profiler.py` moves torch.profiler's events to the clock of the run.
"""

from planner.trace.profiler import CLOCK_MARK, RankTrace, read_rank_trace
from planner.trace.slices import perfetto

__all__ = [
    "CLOCK_MARK",
    "RankTrace",
    "perfetto",
    "read_rank_trace",
]
