"""Writes workload files for models of other packages, to be read, changed and planned.

In: the name of a configuration of transformers or the folder of one, and a task. Out: the text of a Python file.
Start reading in `transformers_file.py`.
"""

from planner.recipes.transformers_file import TASKS, file_name, transformers_file

__all__ = ["TASKS", "file_name", "transformers_file"]
