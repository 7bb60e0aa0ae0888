"""The commands that decide, from profile and plan to verify, show, simulate, layouts, export and report.

In: a Typer application, and the tools that the runtime lends (`Tools`). Out: the application with the commands.
Start reading in `app.py` (options that commands share), then `plan.py`. A new command is a file with a row in its
`register`, and a word in `_PANELS` of `shardwright.py`, the title under which `--help` lists it. Each command imports
what it needs when it runs.
"""

from planner.cli.app import (
    Force,
    Json,
    PlanFile,
    RunFolder,
    Tools,
    add_command,
    answer,
    app,
    completing,
)
from planner.cli.export import present
from planner.cli.inspect import register_calibrate
from planner.cli.plan import register
from planner.cli.profile import WorkloadArguments
from planner.cli.scavenge import unit_of, weights_of

__all__ = [
    "Force",
    "Json",
    "PlanFile",
    "RunFolder",
    "Tools",
    "WorkloadArguments",
    "add_command",
    "answer",
    "app",
    "completing",
    "present",
    "register",
    "register_calibrate",
    "unit_of",
    "weights_of",
]
