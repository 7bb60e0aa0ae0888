"""A plan and its run become one HTML page."""

from planner.report.contents import Contents, check_same_model
from planner.report.page import render

__all__ = [
    "Contents",
    "check_same_model",
    "render",
]
