"""The samples that a step is made of, and the parts of them that a rank reads.

In comes the user's workload (a dataset, or synthetic samples) with what the rank wants; out come tensors by
micro-batch and Value.
Start at `batches.py`; `regions.py` is for datasets that read a part of a sample, `live.py` for those of a notebook.
"""

from runtime.data.batches import Batches, Wanted
from runtime.data.live import live_workload
from runtime.data.regions import Feed, Region, Rows
from runtime.data.stream import ByPosition, Pass, Stream, raw_of

__all__ = [
    "Batches",
    "ByPosition",
    "Feed",
    "Pass",
    "Region",
    "Rows",
    "Stream",
    "Wanted",
    "live_workload",
    "raw_of",
]
