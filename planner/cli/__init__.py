"""The commands that decide."""

from planner.cli.app import Force, Json, PlanFile, RunFolder, Tools, add_command, answer, app, completing
from planner.cli.calibrate import register_calibrate
from planner.cli.profile import register

__all__ = [
    "Force",
    "Json",
    "PlanFile",
    "RunFolder",
    "Tools",
    "add_command",
    "answer",
    "app",
    "completing",
    "register",
    "register_calibrate",
]
