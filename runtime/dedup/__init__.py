"""Finds samples that are nearly alike, and trains on those that are kept. It deletes nothing.

In: a dataset with indices. Out: an index file, whose samples `launch --samples` trains on, and pairs of other labels.
Start reading in `near.py`; `hashes.py` makes 64 bits of a picture, and `index.py` has the file and who trains on it.
"""

from runtime.dedup.hashes import HASHES
from runtime.dedup.index import index_digest, keeping, load_index, save_index
from runtime.dedup.near import FoundNear, find, kept_of, near_pairs

__all__ = [
    "HASHES",
    "FoundNear",
    "find",
    "index_digest",
    "keeping",
    "kept_of",
    "load_index",
    "near_pairs",
    "save_index",
]
