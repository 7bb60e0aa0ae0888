"""The commands that run, from launch, rehearse and infer to status, logs, watch, prune, probe and doctor.

In: words of the command line, and the tools that the planner's commands borrow (`tools`). Out: text for
people, or one JSON object.
Start reading in `launch.py` (whose `register` has a row for every command) and `runs.py`. Each command imports what it needs when it runs.
"""

from runtime.cli.launch import register
from runtime.cli.planner_tools import backward_split, register_track, register_watch, spatial_split, tools

__all__ = [
    "backward_split",
    "register",
    "register_track",
    "register_watch",
    "spatial_split",
    "tools",
]
