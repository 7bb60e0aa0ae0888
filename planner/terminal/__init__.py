"""How commands speak: text for people, one JSON object for programs."""

from planner.terminal.console import Output, answers_alone, grids, patient, report_error, whole_numbers
from planner.terminal.progress import Report
from planner.terminal.tables import columns

__all__ = [
    "Output",
    "Report",
    "answers_alone",
    "columns",
    "grids",
    "patient",
    "report_error",
    "whole_numbers",
]
