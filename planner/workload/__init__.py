"""The user's file, found by name and called with the settings it asks for.

In go the name of a file, module or model of ours, and the text of `--set`. Out comes a `Workload` with the functions
build, batch, loss and more. Whatever is wrong in them is one BadInput with the user's own line.
Start reading in `workload.py`.
"""

from planner.workload.user_file import parse_settings
from planner.workload.workload import Workload, is_users, load, where_raised

__all__ = [
    "Workload",
    "is_users",
    "load",
    "parse_settings",
    "where_raised",
]
