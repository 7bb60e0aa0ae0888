"""One loop runs every schedule: a rank's part of a `Program` becomes a flat list of calls.

In come the program, the stages, what carries messages and what sums gradients; out come trained weights and a
trace.
Start at `interpreter.py`; `tracer.py` records times and bytes.
"""

from runtime.execute.interpreter import (
    AUTOCAST,
    Interpreter,
    NotFinite,
    Pulse,
    Tensors,
    forward_program,
    profiled,
    program_of,
)
from runtime.execute.tracer import (
    SILENT,
    WAITS,
    ActionCall,
    Resident,
    Tracer,
    clock_ns,
    free_bytes,
    static_bytes,
    with_peak,
)

__all__ = [
    "AUTOCAST",
    "SILENT",
    "WAITS",
    "ActionCall",
    "Interpreter",
    "NotFinite",
    "Pulse",
    "Resident",
    "Tensors",
    "Tracer",
    "clock_ns",
    "forward_program",
    "free_bytes",
    "profiled",
    "program_of",
    "static_bytes",
    "with_peak",
]
