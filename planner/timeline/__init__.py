"""The events of a run or a simulation in one type, predicted and measured alike, and their comparison.

In go columns of nanoseconds, from the simulator, a tracer or a file. Out come a `Timeline` that can be cut by rank and
step, and a `Comparison` of two.
Start reading in `timeline.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later

if TYPE_CHECKING:
    from planner.timeline.comparison import (
        COMPARED,
        Comparison,
        compare,
        compared_rows,
        concatenate,
        converting_ns,
        in_words,
    )
    from planner.timeline.timeline import (
        BUSY,
        CLOCK_COLUMNS,
        COLLECTIVE,
        CONVERSION_COLUMNS,
        MEMORY_COLUMNS,
        SEND,
        Event,
        Timeline,
        decode,
        encode,
        from_events,
    )

__all__ = [
    "BUSY",
    "CLOCK_COLUMNS",
    "COLLECTIVE",
    "COMPARED",
    "CONVERSION_COLUMNS",
    "MEMORY_COLUMNS",
    "SEND",
    "WARM_UP_STEPS",
    "Comparison",
    "Event",
    "Timeline",
    "compare",
    "compared_rows",
    "concatenate",
    "converting_ns",
    "decode",
    "encode",
    "from_events",
    "in_words",
]

# The first steps of a run are slower than the others and count in no average: connections are opened in them, memory
# is first touched, and the first update makes the optimizer's state.
WARM_UP_STEPS = 2
__getattr__ = later(
    __name__,
    {
        "comparison": (
            "COMPARED",
            "Comparison",
            "compare",
            "compared_rows",
            "concatenate",
            "converting_ns",
            "in_words",
        ),
        "timeline": (
            "BUSY",
            "CLOCK_COLUMNS",
            "CONVERSION_COLUMNS",
            "COLLECTIVE",
            "Event",
            "MEMORY_COLUMNS",
            "SEND",
            "Timeline",
            "decode",
            "encode",
            "from_events",
        ),
    },
)
