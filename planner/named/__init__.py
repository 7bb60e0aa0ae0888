"""Names that a user may type: devices, models, clusters, families of schedules, and operations that shards know.

In: a kind of name. Out: rows with what each name stands for. Nothing is imported of a model, and no torch.
Start reading in `names.py`.
"""

from planner.named.names import KINDS, PINS, listed

__all__ = [
    "KINDS",
    "PINS",
    "listed",
]
