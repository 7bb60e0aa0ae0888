"""What happened when, predicted or measured, in one type."""

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
