"""Writes workload files for models of other packages, to be read, changed and planned.

In: the name of a configuration of transformers, and a task. Out: the text of a Python file.
Start reading in `transformers_file.py`.
"""

from planner.recipes.transformers_file import TASKS, transformers_file

__all__ = ["TASKS", "transformers_file"]
