"""The commands that run."""

from runtime.cli.for_planner import backward_split, spatial_split, tools
from runtime.cli.launch import register

__all__ = [
    "backward_split",
    "register",
    "spatial_split",
    "tools",
]
