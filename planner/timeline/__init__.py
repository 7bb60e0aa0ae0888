"""The events of a run or a simulation in one type, predicted and measured alike, and their comparison.

In go columns of nanoseconds, from the simulator, a tracer or a file. Out come a `Timeline` that can be cut by rank and
step, and a `Comparison` of two.
Start reading in `timeline.py`.
"""

from planner.timeline.comparison import Comparison, Difference, compare
from planner.timeline.timeline import (
    COLLECTIVE,
    MEMORY_COLUMNS,
    SEND,
    WARM_UP_STEPS,
    Event,
    Timeline,
    concatenate,
    decode,
    encode,
    from_events,
)

__all__ = [
    "COLLECTIVE",
    "MEMORY_COLUMNS",
    "SEND",
    "WARM_UP_STEPS",
    "Comparison",
    "Difference",
    "Event",
    "Timeline",
    "compare",
    "concatenate",
    "decode",
    "encode",
    "from_events",
]
