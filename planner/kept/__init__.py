"""Says which entries of pruned parameters are kept: as data, in a file, and chosen by magnitude.

In: numbers of a model, or a file of masks made elsewhere. Out: `Masks`, sorted flat indices by parameter, and how many
entries a plan keeps. Start at `masks.py` (the value and its file), then `magnitude.py` (the choice). Nothing trains here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from planner.kept.counts import MOVED_ENTRIES, WHOLE, KeptEntries, kept_counts

if TYPE_CHECKING:
    from planner.kept.magnitude import By, Numbers, prune
    from planner.kept.masks import Masks, dump, kept_asked, load_masks, shares_asked

__all__ = [
    "MOVED_ENTRIES",
    "WHOLE",
    "By",
    "KeptEntries",
    "Masks",
    "Numbers",
    "dump",
    "kept_asked",
    "kept_counts",
    "load_masks",
    "prune",
    "shares_asked",
]

__getattr__ = later(
    __name__,
    {
        "masks": ("Masks", "dump", "kept_asked", "load_masks", "shares_asked"),
        "magnitude": ("By", "Numbers", "prune"),
    },
)
