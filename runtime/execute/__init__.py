"""One loop runs every schedule."""

from runtime.execute.interpreter import (
    AUTOCAST,
    SILENT,
    WAITS,
    ActionCall,
    Interpreter,
    NotFinite,
    Pulse,
    Tensors,
    forward_program,
    program_of,
)
from runtime.execute.peak_memory import free_bytes, static_bytes, with_peak
from runtime.execute.tracer import Tracer, clock_ns

__all__ = [
    "AUTOCAST",
    "SILENT",
    "WAITS",
    "ActionCall",
    "Interpreter",
    "NotFinite",
    "Pulse",
    "Tensors",
    "Tracer",
    "clock_ns",
    "forward_program",
    "free_bytes",
    "program_of",
    "static_bytes",
    "with_peak",
]
