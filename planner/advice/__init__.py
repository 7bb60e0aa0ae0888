"""What to try next with a plan, each with its reason and the command that does it, as it can be pasted.

In: a plan, the files that it and its run are in, and what a report knows of them. Out: words and commands.
Start reading in `next_steps.py`.
"""

from planner.advice.commands import Sources
from planner.advice.next_steps import advice

__all__ = [
    "Sources",
    "advice",
]
