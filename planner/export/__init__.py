"""A plan in the words of other trainers, and their configurations as settings that can be priced: text alone.

In: a plan and the name of a trainer, or a file of one of them. Out: a file or a command that states the same training,
or one refusal that names all that cannot be stated; and `Settings`, whatever form they were read from. Start reading
in `settings.py` (what trainers have in common), then `registry.py` and one trainer, such as `torchtitan.py`.
"""

from planner.export.baseline import Baseline, comparison, completed
from planner.export.launching import FORMS, LaunchText
from planner.export.registry import TRAINERS, export, read_settings
from planner.export.settings import Settings

__all__ = [
    "FORMS",
    "TRAINERS",
    "Baseline",
    "LaunchText",
    "Settings",
    "comparison",
    "completed",
    "export",
    "read_settings",
]
