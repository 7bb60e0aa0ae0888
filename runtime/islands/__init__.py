"""One training by islands: runs of one plan that never talk, and meet in a folder once a round.

In: a plan, and `IslandsAsked`. Out: versions of the weights, each the sum of what all shards did with the one before;
they are the checkpoints of the folder. Any number of islands, in any order, make the same bytes.
Start reading in `folder.py` (what is on disk), then `outer.py` (the sum) and `work.py` (who does what). `least_steps.py` says
how many steps a round should have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from runtime.islands.folder import (
    IslandsAsked,
    IslandsFolder,
    IslandsStatus,
    Outer,
    islands_status,
    islands_text,
)

if TYPE_CHECKING:
    from runtime.islands.least_steps import Advice, advice
    from runtime.islands.start import begin, queue_islands
    from runtime.islands.work import start_islands, work_on

__all__ = [
    "Advice",
    "IslandsAsked",
    "IslandsFolder",
    "IslandsStatus",
    "Outer",
    "advice",
    "begin",
    "islands_status",
    "islands_text",
    "queue_islands",
    "start_islands",
    "work_on",
]

__getattr__ = later(
    __name__,
    {
        "least_steps": ("Advice", "advice"),
        "start": ("begin", "queue_islands"),
        "work": ("start_islands", "work_on"),
    },
)
