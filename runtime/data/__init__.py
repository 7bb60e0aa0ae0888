"""The samples that a step is made of, and the parts of them that a rank reads."""

from runtime.data.batches import Batches, Wanted
from runtime.data.regions import Region, Rows

__all__ = [
    "Batches",
    "Region",
    "Rows",
    "Wanted",
]
