"""The voice of commands: text for people, one JSON object for programs.

In go results, notes, errors, progress and tables; out goes text. Results go to standard output, all else to standard
error.
Start reading in `console.py`; `layout.py` wraps, aligns and colours, and `progress.py` shows how far a long task is.
"""

from planner.terminal.console import (
    Output,
    answers_alone,
    grids,
    report_error,
    whole_numbers,
)
from planner.terminal.layout import columns, say
from planner.terminal.progress import LiveLine, Report, patient

__all__ = [
    "LiveLine",
    "Output",
    "Report",
    "answers_alone",
    "columns",
    "grids",
    "patient",
    "report_error",
    "say",
    "whole_numbers",
]
