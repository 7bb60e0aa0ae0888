"""The voice of commands: text for people, one JSON object for programs.

In go results, notes, errors, progress and tables; out goes text. Results go to standard output, all else to standard
error.
Start reading in `console.py`; `layout.py` wraps, aligns and colours.
"""

from planner.terminal.console import (
    LiveLine,
    Output,
    Report,
    answers_alone,
    patient,
    report_error,
)
from planner.terminal.layout import columns, say

__all__ = [
    "LiveLine",
    "Output",
    "Report",
    "answers_alone",
    "columns",
    "patient",
    "report_error",
    "say",
]
