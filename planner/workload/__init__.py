"""The user's file, found by name and called with the settings it asks for."""

from planner.workload.settings import parse_settings
from planner.workload.workload import Workload, load, where_raised

__all__ = [
    "Workload",
    "load",
    "parse_settings",
    "where_raised",
]
