"""A plan and its run as one HTML page that needs no network.

In: a plan and, where there are any, its run and profile (`Contents`). Out: the text of the page (`render`).
Start reading in `page.py`, then `sections.py`; scripts and style of the page lie in `web/`.
"""

from planner.report.contents import Contents, check_same_model
from planner.report.page import render

__all__ = [
    "Contents",
    "check_same_model",
    "render",
]
